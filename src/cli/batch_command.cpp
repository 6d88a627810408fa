#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/text.h"
#include "cli/byte_size.h"
#include "cli/commands.h"
#include "cli/planned_job.h"
#include "device/nvml/gpu_facts.h"
#include "lockstep/error.h"
#include "observe/metrics_reader.h"
#include "plan/balance.h"
#include "plan/gpu_memory.h"
#include "plan/largest_batch.h"
#include "plan/step_estimate.h"
#include "train/worker/compile_options.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

/// As trainer.global_batch is limited.
constexpr int64_t kMostSamples = 1073741824;

struct BatchArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  std::string layouts;  ///< several; "": that of the config or of --layout
  std::optional<int> world_size;
  PlannedHosts hosts;
  std::string devices = "cpu";
  std::string memory;  ///< sizes; "": see devices_of
  std::string profile;
  std::string run;  ///< a folder; "": none
};

/// A kind of device, and what a rank's plan may take of it.
struct PlannedDevice {
  std::string name;
  device::DeviceKind kind = device::DeviceKind::cpu;
  int64_t limit = 0;
};

/// A device and a layout, with what was found for them.
struct BatchRow {
  PlannedDevice device;
  layout::Layout layout;  ///< resolved, if it can be
  std::string refused;    ///< why it cannot be compiled; "": it can
  plan::LargestBatch found;
  int micro_batches = 1;                 ///< of a worker, or of a pipeline
  std::optional<double> step_seconds;    ///< computing alone, by the profile
  std::optional<double> learning_rate;   ///< for that batch
  std::vector<std::string> assignments;  ///< for --set
};

/// The smallest GPU of this machine.
int64_t memory_of_own_gpus() {
  const device::NvmlFacts facts = device::nvml_facts();
  int64_t least = 0;
  for (const auto& gpu : facts.gpus)
    if (gpu.memory_bytes > 0 && (least == 0 || gpu.memory_bytes < least)) least = gpu.memory_bytes;
  return least;
}

std::vector<int64_t> limits_of(const BatchArguments& arguments) {
  std::vector<int64_t> limits;
  if (arguments.memory.empty()) return limits;
  for (const std::string& word : split(arguments.memory, ',')) {
    const std::optional<int64_t> bytes = parse_byte_size(word);
    if (!bytes)
      throw ConfigError(
          fmt::format("--memory {}: expected a size up to 1024 TiB, such as 80GB, 24GiB or 1500000", word));
    limits.push_back(*bytes);
  }
  return limits;
}

/// What plans may take of a device of this kind, if --memory does not say it.
int64_t known_limit(device::DeviceKind kind, const std::string& word, int64_t memory_limit) {
  if (memory_limit > 0) return memory_limit;
  const int64_t own = kind == device::DeviceKind::cuda ? memory_of_own_gpus() : 0;
  if (own == 0)
    throw ConfigError(fmt::format(
        "--device {}: how much memory may a rank take? State --memory, such as --memory 80GB, or name a GPU, "
        "such as --device H100",
        word));
  return plan::bytes_for_plans(own);
}

std::vector<PlannedDevice> devices_of(const BatchArguments& arguments, int64_t memory_limit) {
  const std::vector<int64_t> limits = limits_of(arguments);
  std::vector<PlannedDevice> devices;
  for (const std::string& word : split(arguments.devices, ',')) {
    if (word == "cpu" || word == "cuda") {
      const auto kind = word == "cpu" ? device::DeviceKind::cpu : device::DeviceKind::cuda;
      for (const int64_t limit : limits) devices.push_back({word, kind, limit});
      if (limits.empty()) devices.push_back({word, kind, known_limit(kind, word, memory_limit)});
      continue;
    }
    const std::optional<int64_t> bytes = plan::memory_of_gpu(word);
    const std::vector<std::string> names = plan::names_of_gpus();
    if (!bytes)
      throw ConfigError(
          fmt::format("--device {}: no GPU of that name{}; there are cpu, cuda and {}; for others: --device "
                      "cuda --memory "
                      "SIZE",
                      word, did_you_mean(word, names), join(names, ", ")));
    if (!limits.empty())
      throw ConfigError(
          fmt::format("--memory: the memory of --device {} is known; leave one of them out, or "
                      "use --device cuda",
                      word));
    const int64_t most = memory_limit > 0 ? memory_limit : *bytes;
    devices.push_back({word, device::DeviceKind::cuda, std::min(most, plan::bytes_for_plans(*bytes))});
  }
  if (devices.empty()) throw ConfigError("--device: name at least one, such as cpu or H100");
  return devices;
}

config::RunConfig load(const BatchArguments& arguments, const std::optional<std::string>& layout) {
  auto overrides = arguments.config.all_overrides();
  if (!arguments.profile.empty()) overrides.push_back("parallel.profile=" + arguments.profile);
  return config::load_run_config(arguments.config.path, overrides, layout);
}

bool is_momentum_method(optim::OptimizerKind kind) {
  return kind == optim::OptimizerKind::sgd || kind == optim::OptimizerKind::lars;
}

/// As the config states it; otherwise its own rate for its own batch, by the rule for its optimizer.
optim::BatchScaling scaling_of(const config::RunConfig& config) {
  if (config.batch_scaling) return *config.batch_scaling;
  return {.learning_rate = config.optimizer.learning_rate,
          .from = config.trainer.global_batch,
          .rule = is_momentum_method(config.optimizer.kind) ? optim::ScalingRule::linear
                                                            : optim::ScalingRule::square_root};
}

std::string_view name_of(optim::ScalingRule rule) {
  return rule == optim::ScalingRule::linear ? "LINEAR" : "SQUARE_ROOT";
}

void estimate(BatchRow& row, compile::CompileOptions options, const compile::CompileFacts& facts) {
  options.micro_batch = row.found.fit->micro_batch;
  options.global_batch = row.found.fit->global_batch;
  const compile::CompiledRun run(plan::balanced(options, facts, row.device.limit), facts);
  row.step_seconds = plan::estimate_step(run);
}

BatchRow row_of(const BatchArguments& arguments, const PlannedDevice& device,
                const config::RunConfig& config) {
  BatchRow row{.device = device, .layout = config.parallel.layout};
  try {
    const int processes = planned_processes(arguments.world_size, config.parallel.layout);
    row.layout = layout::resolve(config.parallel.layout, processes);
    const compile::CompileFacts facts =
        compile::planned_facts(processes, arguments.hosts.of(processes), device.kind);
    const compile::CompileOptions options = train::compile_options(config);
    row.micro_batches = compile::CompiledRun(options, facts).division().micro_batches_of(0);
    row.found = plan::largest_batch(options, facts, device.limit, kMostSamples);
    if (!row.found.fit) return row;
    const plan::BatchFit& fit = *row.found.fit;
    row.learning_rate = scaling_of(config).rate_for(fit.global_batch);
    row.assignments = {fmt::format("trainer.micro_batch={}", fit.micro_batch),
                       fmt::format("trainer.global_batch={}", fit.global_batch)};
    // Its default follows from the batch, and would divide this one otherwise.
    if (!config.states_virtual_replicas && config.parallel.reduction == layout::Reduction::reproducible)
      row.assignments.push_back(
          fmt::format("trainer.virtual_replicas={}", config::resolved_virtual_replicas(config.trainer)));
    if (config.parallel.profile) estimate(row, options, facts);
  } catch (const ConfigError& error) {
    row.refused = error.what();
  }
  return row;
}

/// A config in a layout, if it has one.
struct PlannedConfig {
  layout::Layout layout;
  std::optional<config::RunConfig> config;
  std::string refused;  ///< why there is none
};

PlannedConfig planned(const BatchArguments& arguments, const layout::Layout& layout) {
  try {
    return {layout, load(arguments, layout::to_string(layout)), ""};
  } catch (const ConfigError& error) {
    return {layout, {}, error.what()};
  }
}

/// Those of --layouts, or the config's own and others that take less memory.
std::vector<PlannedConfig> configs_of(const BatchArguments& arguments) {
  std::vector<PlannedConfig> configs;
  if (!arguments.layouts.empty()) {
    for (const layout::Layout& layout : layout::parse_layouts(arguments.layouts))
      configs.push_back(planned(arguments, layout));
    return configs;
  }
  config::RunConfig config = load(arguments, arguments.config.layout);
  const layout::Layout own = config.parallel.layout;
  configs.push_back({own, std::move(config), ""});
  if (arguments.config.layout) return configs;
  for (const auto recompute : {layout::Recompute::selective, layout::Recompute::full}) {
    layout::Layout other = own;
    other.recompute = recompute;
    if (recompute > own.recompute) configs.push_back(planned(arguments, other));
  }
  layout::Layout sharded = own;
  if (std::exchange(sharded.shard, layout::ShardedState::optimizer) == layout::ShardedState::none &&
      own.sync == layout::SyncMethod::all_reduce && planned_processes(arguments.world_size, own) > own.pp)
    configs.push_back(planned(arguments, sharded));
  return configs;
}

Json json_of(const plan::BatchFit& batch) {
  return {{"micro_batch", batch.micro_batch},
          {"global_batch", batch.global_batch},
          {"memory_bytes", batch.bytes}};
}

Json json_of(const BatchRow& row) {
  Json json{{"device", row.device.name},
            {"memory_limit", row.device.limit},
            {"layout", layout::to_string(row.layout)}};
  if (!row.refused.empty()) {
    json["refused"] = row.refused;
    return json;
  }
  json["processes"] = row.layout.world_size();
  json["micro_batches"] = row.micro_batches;
  json["largest"] = row.found.fit ? json_of(*row.found.fit) : Json();
  json["next"] = row.found.next ? json_of(*row.found.next) : Json();
  if (!row.found.bound.empty()) json["bound"] = row.found.bound;
  if (row.learning_rate) json["learning_rate"] = *row.learning_rate;
  if (row.step_seconds) {
    json["step_seconds"] = *row.step_seconds;
    json["samples_per_second"] = static_cast<double>(row.found.fit->global_batch) / *row.step_seconds;
  }
  json["set"] = row.assignments;
  return json;
}

std::string line_of(const BatchRow& row, size_t width, bool has_profile) {
  const std::string head = fmt::format("{:<{}}  {:<10}{:>12}", layout::to_string(row.layout), width,
                                       row.device.name, human_bytes(row.device.limit));
  if (!row.refused.empty()) return fmt::format("{}  {}\n", head, row.refused);
  if (!row.found.fit)
    return fmt::format("{}  nothing fits{}\n", head,
                       row.found.next
                           ? fmt::format(": micro-batches of {} take {}", row.found.next->micro_batch,
                                         human_bytes(row.found.next->bytes))
                           : "");
  const plan::BatchFit& fit = *row.found.fit;
  return fmt::format("{}{:>12}{:>13}{:>13}{:>12}{}{:>11.4g}\n", head, fit.micro_batch, row.micro_batches,
                     fit.global_batch, human_bytes(fit.bytes),
                     has_profile ? fmt::format("{:>12.4g}", static_cast<double>(fit.global_batch) /
                                                                row.step_seconds.value_or(0))
                                 : "",
                     row.learning_rate.value_or(0));
}

/// As the run has measured it last.
std::optional<double> noise_scale_of(const std::string& run) {
  if (run.empty()) return {};
  std::optional<double> scale;
  for (const auto& row : observe::read_metrics(run + "/metrics.jsonl"))
    if (row.has("noise_scale")) scale = row.number("noise_scale");
  if (!scale)
    throw ConfigError(fmt::format(
        "--run {}: the run has not measured its noise scale; train with metrics.noise_scale_every_steps",
        run));
  return scale;
}

std::string text_of(const std::vector<BatchRow>& rows, const config::RunConfig& config,
                    const std::optional<double>& noise_scale) {
  size_t width = 6;
  for (const BatchRow& row : rows) width = std::max(width, layout::to_string(row.layout).size());
  const bool has_profile = config.parallel.profile.has_value();
  std::string text = fmt::format("{:<{}}  {:<10}{:>12}{:>12}{:>13}{:>13}{:>12}{}{:>11}\n", "layout", width,
                                 "device", "may take", "micro-batch", "per worker", "global batch", "takes",
                                 has_profile ? fmt::format("{:>12}", "samples/s") : "", "rate");
  std::string bounds;
  for (const BatchRow& row : rows) {
    text += line_of(row, width, has_profile);
    if (row.found.fit && !row.found.bound.empty())
      bounds += fmt::format("layout {}: what bounds the batch is not memory: {}\n",
                            layout::to_string(row.layout), row.found.bound);
  }
  const optim::BatchScaling scaling = scaling_of(config);
  text += fmt::format(
      "\n{}per worker: micro-batches of a step, as many as the config's own batch has\n"
      "rate: {} for {} samples, by the rule {}{}\n",
      bounds, exact(scaling.learning_rate), scaling.from, name_of(scaling.rule),
      config.batch_scaling
          ? ""
          : fmt::format("; optimizer.scale_with_batch {{ from: {} rule: {} }} does it in the "
                        "config",
                        scaling.from, name_of(scaling.rule)));
  if (has_profile)
    text += fmt::format("samples/s: computing alone, without sums and communication, by {}\n",
                        config.parallel.profile->source);
  if (noise_scale)
    text += fmt::format(
        "noise scale: {:.4g} samples, as measured last; beyond a batch of as many, more workers save few "
        "steps\n",
        *noise_scale);
  for (const BatchRow& row : rows)
    if (row.found.fit) {
      text += fmt::format("to train so: --layout {}", layout::to_string(row.layout));
      for (const std::string& assignment : row.assignments) text += " --set " + assignment;
      return text + "\n";
    }
  return text;
}

int batch(const BatchArguments& arguments) {
  if (!arguments.layouts.empty() && arguments.config.layout)
    throw ConfigError("--layouts and --layout: use one of the two");
  const std::optional<double> noise_scale = noise_scale_of(arguments.run);
  const std::vector<PlannedConfig> configs = configs_of(arguments);
  const auto first = std::ranges::find_if(configs, [](const auto& each) { return each.config.has_value(); });
  if (first == configs.end()) throw ConfigError(configs.front().refused);
  std::vector<BatchRow> rows;
  for (const PlannedDevice& device : devices_of(arguments, first->config->device.memory_limit))
    for (const PlannedConfig& each : configs)
      rows.push_back(each.config
                         ? row_of(arguments, device, *each.config)
                         : BatchRow{.device = device, .layout = each.layout, .refused = each.refused});
  // If no question has an answer, that is an error.
  if (std::ranges::all_of(rows, [](const BatchRow& row) { return !row.refused.empty(); }))
    throw ConfigError(rows.front().refused);
  if (!arguments.output.json) {
    write_result(text_of(rows, *first->config, noise_scale));
    return static_cast<int>(ExitCode::done);
  }
  const optim::BatchScaling scaling = scaling_of(*first->config);
  Json json{{"rule", name_of(scaling.rule)},
            {"from", scaling.from},
            {"learning_rate", scaling.learning_rate},
            {"batches", Json::array()}};
  if (noise_scale) json["noise_scale"] = *noise_scale;
  for (const BatchRow& row : rows) json["batches"].push_back(json_of(row));
  write_result(json.dump() + "\n");
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_batch_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(
      program, "batch",
      "Finds the largest batch that fits a device in each layout, by the memory plan alone, without a trial",
      "  lockstep batch configs/gpt2_124m.textproto --device H100,A100-40GB\n"
      "  lockstep batch configs/shakespeare_gpt.textproto --memory 2GB --layouts \"dp=2; "
      "dp=2,shard=optimizer; dp=1,pp=2\"");
  const auto arguments = std::make_shared<BatchArguments>();
  add_config(command, arguments->config, /*with_data=*/false);
  add_layout(command, arguments->config);
  command
      .add_option("--layouts", arguments->layouts,
                  "Layouts, separated by semicolons; default: the config's own, and others with less memory")
      ->type_name("LAYOUT;...");
  command
      .add_option("--world", arguments->world_size,
                  "Number of processes; default: as many as the layout says")
      ->check(CLI::Range(1, layout::kMostProcesses));
  add_planned_hosts(command, arguments->hosts);
  command
      .add_option(
          "--device", arguments->devices,
          "Devices of the workers, separated by commas: cpu, cuda, or GPUs by name, such as H100; they "
          "need not be in this machine")
      ->type_name("DEVICE,...")
      ->capture_default_str();
  command
      .add_option("--memory", arguments->memory,
                  "What a rank's memory plan may take, such as 80GB or 24GiB; several separated by commas. "
                  "Default: device.memory_limit or, with cuda, the memory of this machine's GPUs")
      ->type_name("SIZE,...");
  command
      .add_option("--profile", arguments->profile,
                  "Times of layers (lockstep profile), from which samples per second follow")
      ->type_name("FILE");
  command
      .add_option("--run", arguments->run,
                  "The folder of a run that has measured its gradient noise scale "
                  "(metrics.noise_scale_every_steps), which tells how large a batch pays")
      ->type_name("DIR");
  add_json(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return batch(*arguments); }; });
}

}  // namespace lockstep::cli
