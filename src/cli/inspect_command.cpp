#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/hash.h"
#include "base/index.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/new_file.h"
#include "cli/planned_job.h"
#include "cli/rank_table.h"
#include "cli/step_picture.h"
#include "layout/layout.h"
#include "layout/pipeline_drawing.h"
#include "layout/pipeline_timeline.h"
#include "lockstep/error.h"
#include "observe/timeline/chrome_trace.h"
#include "plan/memory_limit.h"
#include "plan/stage_table.h"
#include "plan/step_estimate.h"
#include "plan/step_sketch.h"
#include "plan/timeline_slices.h"
#include "train/worker/compile_options.h"
#include "train/worker/worker_memory.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

struct InspectArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  std::optional<int> world_size;
  PlannedHosts hosts;
  int rank = 0;
  std::string program;   ///< "": no program is printed
  std::string picture;   ///< file of a drawing; "": none
  std::string timeline;  ///< file of a predicted timeline; "": none
  bool graph = false, memory = false, schedule = false;
  std::string device = "cpu";
};

const program::Program& program_named(const compile::CompiledRun::RankPrograms& programs,
                                      const std::string& name) {
  for (const program::Program* program : programs.all())
    if (program->name == name) return *program;
  throw ConfigError(fmt::format(
      "--program {}: exists only with mode=stale and mode=async; this layout has step, evaluate and boundary",
      name));
}

/// Segments with their first and last layers and the size of their buckets.
std::string segment_table(const compile::CompiledRun& run) {
  const auto& nodes = run.graph().nodes;
  const auto& partition = run.partition();
  std::string text = fmt::format("{} segments, each with a bucket of gradients\n", partition.segments.size());
  for (size_t s = 0; s < partition.segments.size(); ++s) {
    const auto& segment = partition.segments[s];
    text += fmt::format("  {:<4}{:>12}  {} ... {}\n", s, human_bytes(partition.buckets[s].size_bytes),
                        nth(nodes, segment.first_node).name, nth(nodes, segment.last_node).name);
  }
  return text;
}

/// What is known of a step before it runs: its rate, if that follows the batch, its stages, and its time.
std::string step_table(const config::RunConfig& config, const compile::CompiledRun& run) {
  std::string text;
  if (config.batch_scaling) text = config::describe_batch_scaling(config) + "\n";
  if (run.layout().pp > 1) text += plan::describe(plan::summarize_pipeline(run), run.layout());
  text += plan::describe_step(run);
  return text.empty() ? "" : text + "\n";
}

std::string program_summary(const program::Program& program) {
  size_t communicating = 0;
  for (const auto& instruction : program.instructions)
    communicating += program::communicates(instruction.kind) ? 1 : 0;
  return fmt::format("{}: {} instructions, {} of them communicate, {} lanes", program.name,
                     program.instructions.size(), communicating, program.lanes.size());
}

/// Of one that has the other role than `rank`, if servers are no workers: a worker, or the server that
/// holds most; otherwise nothing.
std::optional<int> rank_of_other_role(const compile::CompiledRun& run, int rank) {
  const layout::Ownership& ownership = run.ownership();
  if (!ownership.has_servers()) return {};
  if (!ownership.is_worker(rank)) return 0;
  int largest = ownership.workers();
  for (int server = largest; server < ownership.ranks(); ++server)
    if (ownership.owned_bytes(server) > ownership.owned_bytes(largest)) largest = server;
  return largest;
}

std::string memory_text(const config::RunConfig& config, const compile::CompiledRun& run,
                        const compile::CompiledRun::RankPrograms& programs, int rank) {
  const std::string_view role = run.ownership().has_servers() ? run.role_of(rank) : "";
  return fmt::format("memory of rank {} of {}{}, on {}\n{}\n", rank, run.layout().world_size(),
                     role.empty() ? "" : fmt::format(" ({})", role),
                     run.device_of(rank) == device::DeviceKind::cuda ? "GPUs" : "CPUs",
                     train::describe(train::plan_worker_memory(run, programs, config)));
}

std::string text_of(const InspectArguments& arguments, const config::RunConfig& config,
                    const compile::CompiledRun& run, const compile::CompiledRun::RankPrograms& programs) {
  if (!arguments.program.empty()) return program::to_text(program_named(programs, arguments.program));
  const bool all = !arguments.graph && !arguments.memory;
  std::string text;
  if (all || arguments.graph) text += model::describe(run.graph()) + "\n" + segment_table(run) + "\n";
  if (all)
    text +=
        fmt::format("layout {}: {}\n\n{}", layout::to_string(run.layout()),
                    layout::describe(run.division(), run.layout().pp > 1 ? "replica" : "worker"),
                    step_table(config, run)) +
        fmt::format("bytes that each rank holds, updates, saves and sends\n{}\n", describe(rank_shares(run)));
  if (all || arguments.memory) {
    text += memory_text(config, run, programs, arguments.rank);
    if (const auto other = rank_of_other_role(run, arguments.rank))
      text += memory_text(config, run, run.compile(*other), *other);
  }
  if (all) {
    for (const program::Program* program : programs.all()) text += program_summary(*program) + "\n";
    text += fmt::format("program hash {}\n", to_hex(run.program_hash()));
  }
  return text +
         "proven: matching, freedom from deadlock, order of accesses and mathematics of all ranks' "
         "programs\n";
}

Json json_of(const plan::PipelineSummary& summary) {
  Json json;
  for (const auto& piece : summary.pieces)
    json["pieces"].push_back({{"stage", piece.stage},
                              {"first_layer", piece.first_layer},
                              {"last_layer", piece.last_layer},
                              {"parameters", piece.parameters},
                              {"time", piece.time}});
  json["memory_bytes"] = summary.memory_bytes;
  json["activation_bytes"] = summary.activation_bytes;
  json["bubble_fraction_theory"] = summary.bubble_fraction;
  json["bubble_fraction_likely"] = summary.likely_bubble_fraction;
  return json;
}

Json json_of(const program::MemoryPlan& plan) {
  Json json;
  for (size_t c = 0; c < plan.category_bytes.size(); ++c)
    json[std::string(program::name_of(static_cast<program::Category>(c)))] = plan.category_bytes[c];
  json["total"] = plan.total_bytes;
  return json;
}

Json json_of(const train::HostMemory& memory) {
  return {{"checkpoint_copy", memory.checkpoint_copy_bytes},
          {"staging", memory.staging_bytes},
          {"served", memory.served_bytes},
          {"read_ahead", memory.read_ahead_bytes},
          {"averages", memory.averages_bytes},
          {"total", memory.total_bytes()}};
}

Json json_of(const InspectArguments& arguments, const config::RunConfig& config,
             const compile::CompiledRun& run, const compile::CompiledRun::RankPrograms& programs) {
  const auto& division = run.division();
  Json json;
  json["world_size"] = run.layout().world_size();
  json["rank"] = arguments.rank;
  json["device"] = device::name_of(run.device_of(arguments.rank));
  json["layout"] = layout::to_string(run.layout());
  json["parameters"] = run.graph().parameter_count();
  for (const auto& node : run.graph().nodes)
    json["layers"].push_back({{"name", node.name}, {"op", name_of(node.op)}});
  json["division"] = {{"global_batch", division.global_batch},
                      {"leaves", division.leaves},
                      {"leaves_at_once", division.leaves_at_once},
                      {"leaf_samples", division.leaf_samples},
                      {"micro_batch", division.micro_batch},
                      {"micro_batches_per_leaf", division.micro_batches_per_leaf}};
  json["learning_rate"] = config.optimizer.learning_rate;
  json["segments"] = run.partition().segments.size();
  for (const auto& bucket : run.partition().buckets) json["bucket_bytes"].push_back(bucket.size_bytes);
  if (run.layout().pp > 1) json["pipeline"] = json_of(plan::summarize_pipeline(run));
  if (run.profile()) json["step_seconds"] = plan::estimate_step(run);
  json["ranks"] = json_of(rank_shares(run));
  const train::WorkerMemory memory = train::plan_worker_memory(run, programs, config);
  json["memory_bytes"] = json_of(memory.device);
  json["host_memory_bytes"] = json_of(memory.host);
  if (const auto other = rank_of_other_role(run, arguments.rank)) {
    const train::WorkerMemory its = train::plan_worker_memory(run, run.compile(*other), config);
    json["other_role"] = {{"rank", *other},
                          {"role", run.role_of(*other)},
                          {"device", device::name_of(run.device_of(*other))},
                          {"memory_bytes", json_of(its.device)},
                          {"host_memory_bytes", json_of(its.host)}};
  }
  for (const program::Program* program : programs.all())
    json["instructions"][program->name] = program->instructions.size();
  if (!arguments.program.empty())
    json["program"] = program::to_text(program_named(programs, arguments.program));
  json["program_hash"] = to_hex(run.program_hash());
  json["math_hash"] = to_hex(config.math_hash);
  json["proven"] = true;
  return json;
}

device::DeviceKind device_of(const InspectArguments& arguments) {
  return arguments.device == "cuda" ? device::DeviceKind::cuda : device::DeviceKind::cpu;
}

/// The pipeline of the replica that has the most micro-batches.
layout::PipelineShape pipeline_of(const config::RunConfig& config, const layout::Layout& layout,
                                  device::DeviceKind device) {
  const layout::BatchDivision division =
      compile::divide_batch(train::compile_options(config), layout, *config.graph, device);
  return layout::pipeline_shape(layout, division.micro_batches_of(0));
}

std::string schedule_text(const layout::Layout& layout, const layout::PipelineShape& shape) {
  return fmt::format("layout {}: of a replica's step, stages: {}, micro-batches: {}\n\n{}\n{}",
                     layout::to_string(layout), shape.stages, shape.micro_batches,
                     layout::draw_schedule(shape), layout::compare_schedules(shape));
}

Json schedule_json(const layout::Layout& layout, const layout::PipelineShape& shape) {
  const layout::PipelineTimeline timeline = layout::replay(shape, {});
  Json json;
  json["layout"] = layout::to_string(layout);
  json["stages"] = shape.stages;
  json["micro_batches"] = shape.micro_batches;
  json["chunks"] = shape.chunks;
  json["step"] = timeline.step / shape.chunks;
  json["bubble_fraction_theory"] = timeline.bubble_fraction();
  for (int stage = 0; stage < shape.stages; ++stage) {
    const layout::ActivationPeak peak = layout::activation_peak(layout::pipeline_schedule(shape, stage));
    json["activation_peaks"].push_back({{"kept", peak.pairs}, {"whole", peak.whole}});
  }
  return json;
}

/// Needs no programs, so that schedules can be looked at which nothing can be compiled for.
int inspect_schedule(const InspectArguments& arguments, const config::RunConfig& config,
                     const layout::Layout& layout) {
  const layout::PipelineShape shape = pipeline_of(config, layout, device_of(arguments));
  write_result(arguments.output.json ? schedule_json(layout, shape).dump() + "\n"
                                     : schedule_text(layout, shape));
  return static_cast<int>(ExitCode::done);
}

void check_steps_together(const char* option, const compile::CompiledRun& run) {
  if (run.layout().has_sessions())
    throw ConfigError(
        fmt::format("{}: with layout '{}' workers do not step together; use a layout with mode=sync", option,
                    layout::to_string(run.layout())));
}

std::vector<program::Program> step_programs(const compile::CompiledRun& run) {
  std::vector<program::Program> programs;
  for (int rank = 0; rank < run.layout().world_size(); ++rank) programs.push_back(run.compile(rank).step);
  return programs;
}

/// A predicted step of all ranks, in the form of train --timeline.
void write_timeline(const std::string& path, const config::RunConfig& config, const compile::CompiledRun& run,
                    const std::vector<int>& hosts) {
  check_steps_together("--timeline", run);
  NewFile file("--timeline", path);
  observe::Timeline timeline = plan::predict_timeline(run, step_programs(run), hosts);
  timeline.config_hash = to_hex(config.config_hash);
  file.write(observe::to_chrome_trace(std::move(timeline)));
}

/// A step of all ranks, as a file.
void write_picture(const std::string& path, const compile::CompiledRun& run, const std::vector<int>& hosts,
                   const std::string& config) {
  check_steps_together("--picture", run);
  NewFile file("--picture", path);
  check_can_be_drawn(run.layout().world_size());
  const std::vector<program::Program> programs = step_programs(run);
  const std::string title =
      fmt::format("a step of {}, layout {}, {}", std::filesystem::path(config).stem().string(),
                  layout::to_string(run.layout()), run.profile() ? "by a profile" : "estimated");
  file.write(step_picture(title, programs, plan::sketch_step(run, programs, hosts)));
}

int inspect(const InspectArguments& arguments) {
  const config::RunConfig config = arguments.config.load();
  const layout::Layout layout = layout::resolve(
      config.parallel.layout, planned_processes(arguments.world_size, config.parallel.layout));
  if (arguments.schedule) return inspect_schedule(arguments, config, layout);
  const int processes = layout.world_size();
  if (arguments.rank >= processes)
    throw ConfigError(fmt::format("--rank {}: the ranks of {} processes are 0 to {}", arguments.rank,
                                  processes, processes - 1));
  // Kernels of GPUs are made without one: what they need is planned anywhere.
  const compile::CompileFacts facts =
      compile::planned_facts(processes, arguments.hosts.of(processes), device_of(arguments));
  const compile::CompiledRun run = train::compile_run(config, facts);
  run.check();
  if (!arguments.picture.empty()) write_picture(arguments.picture, run, facts.hosts, arguments.config.path);
  if (!arguments.timeline.empty()) write_timeline(arguments.timeline, config, run, facts.hosts);
  const auto programs = run.compile(arguments.rank);
  const std::string excess =
      plan::excess(run, train::compile_options(config), facts, config.device.memory_limit);
  if (arguments.output.json) {
    Json json = json_of(arguments, config, run, programs);
    if (config.device.memory_limit > 0) json["fits"] = excess.empty();
    write_result(json.dump() + "\n");
  } else {
    write_result(text_of(arguments, config, run, programs) + (excess.empty() ? "" : "\n" + excess + "\n"));
  }
  return static_cast<int>(ExitCode::done);
}

/// After the options that it would make meaningless.
void add_schedule_option(CLI::App& command, InspectArguments& arguments) {
  CLI::Option* schedule =
      command.add_flag("--schedule", arguments.schedule,
                       "Draw only the order in which the stages of a pipeline run forwards and backwards");
  for (const char* other : {"--several-hosts", "--hosts", "--device", "--rank", "--program", "--graph",
                            "--memory", "--picture", "--timeline"})
    schedule->excludes(other);
}

}  // namespace

void add_inspect_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(
      program, "inspect",
      "Shows model, batch, memory and proven programs of a config in a layout, without running it",
      "  lockstep inspect configs/mnist_lenet.textproto --layout dp=4\n"
      "  lockstep inspect configs/mnist_lenet.textproto --world 4 --rank 1 --program step\n"
      "  lockstep inspect configs/mnist_lenet.textproto --layout pp=4,schedule=interleaved --schedule");
  const auto arguments = std::make_shared<InspectArguments>();
  add_config(command, arguments->config, /*with_data=*/false);
  add_layout(command, arguments->config);
  command
      .add_option("--world", arguments->world_size,
                  "Number of processes; default: as many as the layout says")
      ->check(CLI::Range(1, layout::kMostProcesses));
  add_planned_hosts(command, arguments->hosts);
  command.add_option("--device", arguments->device, "Device of the workers; it need not be in this machine")
      ->type_name("cpu|cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--rank", arguments->rank, "Rank whose memory and programs are shown")
      ->check(CLI::Range(0, layout::kMostProcesses - 1))
      ->capture_default_str();
  command
      .add_option("--program", arguments->program,
                  "Print one program of the rank as text (docs/step-program.md)")
      ->type_name("step|evaluate|boundary|serve|gather")
      ->check(CLI::IsMember({"step", "evaluate", "boundary", "serve", "gather"}));
  command.add_flag("--graph", arguments->graph, "Only the model: layers, segments and buckets");
  command.add_flag("--memory", arguments->memory, "Only the memory plan");
  command
      .add_option(
          "--picture", arguments->picture,
          "Draw a step of all ranks, lane by lane, to a new file; times come from parallel.profile, or "
          "are estimated")
      ->type_name("FILE.svg");
  command
      .add_option("--timeline", arguments->timeline,
                  "Write the same step to a new file, in the form of train --timeline")
      ->type_name("FILE.json");
  add_schedule_option(command, *arguments);
  add_json(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return inspect(*arguments); }; });
}

}  // namespace lockstep::cli
