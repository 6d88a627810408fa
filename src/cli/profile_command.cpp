#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/index.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/new_file.h"
#include "lockstep/error.h"
#include "plan/step_estimate.h"
#include "train/faults/position.h"
#include "train/loop/profiler.h"
#include "train/loop/stop_request.h"
#include "train/loop/trainer.h"
#include "train/start/world.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kWarmUpSteps = 3;

struct ProfileArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  jobs::DeviceArguments device;
  int64_t steps = 20;
  std::string file;
};

/// A training of its own, that leaves nothing behind.
config::RunConfig load(const ProfileArguments& arguments) {
  for (const std::string& said : arguments.config.overrides)
    if (said.starts_with("trainer.steps="))
      throw ConfigError(fmt::format("--set {}: use --steps for the number of measured steps", said));
  auto overrides = arguments.config.all_overrides();
  overrides.push_back("parallel.profile=\"\"");  // this is where it comes from
  config::RunConfig config =
      config::load_run_config(arguments.config.path, overrides, arguments.config.layout);
  if (config.parallel.layout.has_sessions())
    throw ConfigError(
        fmt::format("layout '{}': its workers do not step together; measure with --layout dp=1, with which "
                    "layers take as long",
                    layout::to_string(config.parallel.layout)));
  config.trainer.steps = arguments.steps + kWarmUpSteps;
  config.trainer.epochs = 0;
  config.trainer.eval_every_steps = 0;
  config.trainer.eval_at_end = false;
  config.checkpoint = {.every_steps = 0, .at_end = false};
  return config;
}

/// What was measured, in words.
std::string title_of(const ProfileArguments& arguments, const compile::CompiledRun& run) {
  return fmt::format("{}: {} steps after {} of warm-up, layout {}, micro-batches of {} on {}, medians",
                     arguments.config.path, arguments.steps, kWarmUpSteps, layout::to_string(run.layout()),
                     run.division().micro_batch, run.device() == device::DeviceKind::cuda ? "GPUs" : "CPUs");
}

double flops_of(const model::Graph& graph, const model::Node& node, int64_t micro_batch) {
  std::vector<TensorSpec> inputs;
  for (const int input : node.inputs) inputs.push_back(graph.logical_spec(input));
  const ops::OpCost cost = ops::cost(node.op, inputs, micro_batch);
  return cost.forward_flops + cost.backward_input_flops + cost.backward_weight_flops;
}

double sum_of(const model::Profile& profile) {
  double all = 0;
  for (const auto& node : profile.nodes) all += node.seconds.all();
  return all;
}

std::string table_of(const model::Profile& profile, const compile::CompiledRun& run) {
  const model::Graph& graph = run.graph();
  size_t width = 5;
  for (const auto& node : profile.nodes) width = std::max(width, node.name.size());
  const double all = sum_of(profile);
  std::string text = fmt::format("{:<{}}  {:<24}{:>11}{:>13}{:>8}{:>10}\n", "layer", width, "op",
                                 "forward us", "backward us", "share", "GFLOP/s");
  for (size_t n = 0; n < profile.nodes.size(); ++n) {
    const model::NodeTime& time = profile.nodes[n].seconds;
    if (time.all() == 0) continue;
    text += fmt::format("{:<{}}  {:<24}{:>11.1f}{:>13.1f}{:>6.1f} %{:>10.1f}\n", profile.nodes[n].name, width,
                        name_of(graph.nodes[n].op), 1e6 * time.forward, 1e6 * time.backward(),
                        100 * time.all() / all,
                        flops_of(graph, graph.nodes[n], profile.micro_batch) / time.all() / 1e9);
  }
  return text + fmt::format("{:<{}}  {:<24}{:>11}{:>13.1f}\n{:<{}}  {:<24}{:>11}{:>13.1f}\n", "micro-batch",
                            width, "", "", 1e6 * all, "update", width, "", "",
                            1e6 * profile.update_seconds * static_cast<double>(graph.parameter_count()));
}

Json json_of(const model::Profile& profile, const compile::CompiledRun& run, double rest_seconds) {
  Json json{{"device", profile.device},
            {"storage", name_of(profile.storage)},
            {"layout", layout::to_string(run.layout())},
            {"micro_batch", profile.micro_batch},
            {"micro_batch_seconds", sum_of(profile)},
            {"update_seconds", profile.update_seconds * static_cast<double>(run.graph().parameter_count())},
            {"rest_seconds", rest_seconds},
            {"layers", Json::array()}};
  for (size_t n = 0; n < profile.nodes.size(); ++n) {
    const auto& node = profile.nodes[n];
    json["layers"].push_back({{"name", node.name},
                              {"op", name_of(run.graph().nodes[n].op)},
                              {"forward_seconds", node.seconds.forward},
                              {"backward_input_seconds", node.seconds.backward_input},
                              {"backward_weight_seconds", node.seconds.backward_weight}});
  }
  return json;
}

void tell(const ProfileArguments& arguments, const model::Profile& profile, const compile::CompiledRun& run,
          double rest_seconds) {
  if (arguments.output.json) return write_result(json_of(profile, run, rest_seconds).dump() + "\n");
  std::string text = title_of(arguments, run) + "\n\n" + table_of(profile, run);
  if (rest_seconds > 0)
    text += fmt::format("of a step everything else that computes takes {}\n", human_seconds(rest_seconds));
  if (!arguments.file.empty())
    text += fmt::format("\nstages of pipelines are divided by it with --set parallel.profile={}\n",
                        arguments.file);
  write_result(text);
}

int profile(const ProfileArguments& arguments) {
  return train::run_in_world([&](train::World& world) {
    std::unique_ptr<NewFile> file;
    train::DeviceRequest device = arguments.device.request();
    device.say = log_info;
    const auto worker =
        train::start_worker(world,
                            [&] {
                              config::RunConfig config = load(arguments);
                              if (world.rank() == 0 && !arguments.file.empty())
                                file = std::make_unique<NewFile>("--out", arguments.file);
                              return config;
                            },
                            device, {{"--steps", fmt::to_string(arguments.steps), ExitCode::usage}});
    const train::WatchedWorker watched(world, *worker);
    train::Profiler profiler(*worker, kWarmUpSteps);
    train::TrainerEvents events;
    events.on_step = [&](const train::StepRecord& step) { profiler.end_step(step.skipped, step.busy_ms); };
    events.on_message = [&](const std::string& text) {
      if (world.rank() == 0) log_info(text);
    };
    train::Trainer trainer(
        *worker, world.communicator(), std::move(events),
        {.output_directory = "",
         .stop_requested = train::stop_requested,
         .progress = &world.control().progress(),
         .observer = [&](const run::KernelObservation& observation) { profiler.observe(observation); },
         .drawing_threads = train::idle_threads(world.launch())});
    trainer.prepare();
    const train::TrainingOutcome outcome = trainer.run();
    train::enter_phase(&world.control().progress(), train::Phase::outside);
    if (outcome.stopped) {
      if (world.rank() == 0)
        log_warning(fmt::format("stopped by request after {} of {} steps; nothing was measured or written",
                                outcome.steps, worker->total_steps()));
      return static_cast<int>(train::stop_exit_code());
    }
    if (profiler.updates() == 0)
      throw comm::CollectiveError(
          "every measured step overflowed, so no update was measured; lower "
          "precision.loss_scaling.initial_scale, or measure more steps with --steps",
          ExitCode::internal);
    const model::Profile measured = profiler.result(world.communicator());
    if (world.rank() != 0) return static_cast<int>(ExitCode::done);
    tell(arguments, measured, worker->compiled(), profiler.rest());
    if (file)
      file->write("# What layers take. " + title_of(arguments, worker->compiled()) + ".\n" +
                  config::profile_to_text(measured));
    return static_cast<int>(ExitCode::done);
  });
}

}  // namespace

void add_profile_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(
      program, "profile",
      "Measures how long each layer takes, while the model trains for some steps on one or more processes",
      "  lockstep profile configs/shakespeare_gpt.textproto --data-dir data --layout dp=1 --out gpt.profile\n"
      "  lockstep inspect configs/shakespeare_gpt.textproto --layout dp=1,pp=2 --set "
      "parallel.profile=gpt.profile");
  const auto arguments = std::make_shared<ProfileArguments>();
  add_config(command, arguments->config, /*with_data=*/true);
  add_layout(command, arguments->config);
  command
      .add_option("--steps", arguments->steps,
                  fmt::format("Measured steps, after {} of warm-up", kWarmUpSteps))
      ->check(CLI::Range(int64_t{1}, int64_t{100000}))
      ->capture_default_str();
  command.add_option("--out", arguments->file, "New file for the times, which parallel.profile reads")
      ->type_name("FILE");
  add_device(command, arguments->device);
  add_output(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return profile(*arguments); }; });
}

}  // namespace lockstep::cli
