#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/version.h"
#include "lockstep/error.h"
#include "train/faults/failpoint.h"
#include "train/faults/straggler.h"
#include "train/loop/stop_request.h"
#include "train/start/run.h"
#include "train/start/world.h"

namespace lockstep::cli {
namespace {

struct TrainArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  jobs::DeviceArguments device;
  std::string output_directory, resume, from, trace_directory, straggler, timeline, timeline_steps;
  std::vector<std::string> failpoints, new_layers, leave_out;
  bool allow_config_change = false, metrics_file_only = false;
  int64_t stop_after = 0;
};

/// A list of a config: ["a", "b"].
std::string list_text(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const auto& name : names) {
    std::string text = "\"";
    for (const char c : name) text += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
    quoted.push_back(text + "\"");
  }
  return fmt::format("[{}]", join(quoted, ", "));
}

/// Options that stand for fields of the config become overrides, so that the effective config says them too.
config::RunConfig load(const TrainArguments& arguments) {
  for (const auto& text : arguments.failpoints) train::parse_failpoint(text);
  if (!arguments.straggler.empty()) train::parse_straggler(arguments.straggler);
  auto overrides = arguments.config.all_overrides();
  const bool automatic = arguments.resume == "auto";
  if (arguments.resume == "never")
    overrides.push_back("checkpoint.resume_automatic=false");
  else if (!automatic && !arguments.resume.empty())
    overrides.push_back("checkpoint.resume_path=" + arguments.resume);
  if (automatic && arguments.output_directory.empty())
    throw ConfigError("--resume auto continues from the checkpoints in --out; pass --out, too");
  // A config that begins from another run's checkpoint does so if --out has none yet.
  const bool begins_elsewhere =
      automatic &&
      config::load_run_config(arguments.config.path, overrides, arguments.config.layout).checkpoint.resume ==
          checkpoint::ResumePolicy::path;
  if (automatic && !begins_elsewhere) overrides.push_back("checkpoint.resume_automatic=true");
  if (!arguments.from.empty() && !automatic && !arguments.resume.empty() && arguments.resume != "never")
    throw ConfigError(
        "--from and --resume: a run that resumes has its checkpoint's weights; remove one of them");
  if (!arguments.from.empty()) overrides.push_back("weights.from=" + arguments.from);
  if (!arguments.new_layers.empty())
    overrides.push_back("weights.new_layers=" + list_text(arguments.new_layers));
  if (!arguments.leave_out.empty())
    overrides.push_back("weights.leave_out=" + list_text(arguments.leave_out));
  if (arguments.allow_config_change) overrides.push_back("checkpoint.allow_config_change=true");
  config::RunConfig config =
      config::load_run_config(arguments.config.path, overrides, arguments.config.layout);
  if (automatic) config.checkpoint.resume = checkpoint::ResumePolicy::automatic;
  return config;
}

/// As other commands take the config. The layout is left out: it is what advice wants to change.
std::vector<std::string> config_words(const jobs::ConfigArguments& config) {
  std::vector<std::string> words = {config.path};
  for (const std::string& said : config.all_overrides()) words.push_back("--set=" + said);
  return words;
}

/// A script's unset variable must not mean "save nothing".
std::string not_empty(const std::string& value) {
  return value.empty() ? "is empty; name a folder, or remove the option" : "";
}

int train(const TrainArguments& arguments) {
  std::optional<train::StepRange> steps;
  if (!arguments.timeline_steps.empty()) steps = train::parse_step_range(arguments.timeline_steps);
  return train::run_in_world([&](train::World& world) {
    const auto result = train::train_run(world, {.load_config = [&] { return load(arguments); },
                                                 .config_words = config_words(arguments.config),
                                                 .output_directory = arguments.output_directory,
                                                 .trace_directory = arguments.trace_directory,
                                                 .timeline = arguments.timeline,
                                                 .timeline_steps = steps,
                                                 .quiet = arguments.output.quiet,
                                                 .metrics_file_only = arguments.metrics_file_only,
                                                 .version = commit_text(),
                                                 .device = arguments.device.request(),
                                                 .failpoints = arguments.failpoints,
                                                 .straggler = arguments.straggler,
                                                 .stop_after = arguments.stop_after,
                                                 .stop_requested = train::stop_requested});
    if (world.rank() == 0)
      write_result(arguments.output.json ? observe::to_json(result.report) + "\n"
                                         : observe::describe(result.report, arguments.output.verbose));
    const bool as_told = arguments.stop_after > 0 && result.report.steps >= arguments.stop_after;
    if (!result.stopped || as_told) return static_cast<int>(ExitCode::done);
    if (world.rank() == 0)
      log_warning(fmt::format("stopped by request after step {}{}", result.report.steps,
                              arguments.output_directory.empty()
                                  ? "; nothing was saved, since there is no --out"
                                  : "; resume with --resume auto"));
    return static_cast<int>(train::stop_exit_code());
  });
}

}  // namespace

void add_train_command(CLI::App& program, CommandAction& selected) {
  auto& command =
      add_subcommand(program, "train", "Trains a model in one process, or in as many as mpirun starts",
                     "  mpirun -n 4 lockstep train configs/mnist_lenet.textproto --data-dir DIR --out runs/a "
                     "--set optimizer.learning_rate=0.05");
  const auto arguments = std::make_shared<TrainArguments>();
  add_config(command, arguments->config, /*with_data=*/true);
  add_layout(command, arguments->config);
  command
      .add_option(
          "--out", arguments->output_directory,
          "Folder for metrics.jsonl, config.effective.textproto and checkpoints; default: nothing is saved")
      ->type_name("DIR")
      ->check(not_empty);
  command
      .add_option("--resume", arguments->resume,
                  "auto: resume from the newest complete checkpoint in --out, else from the config's "
                  "resume_path, else start afresh; never: start afresh; PATH: resume from this checkpoint "
                  "or run; default: as the config says")
      ->type_name("auto|never|PATH")
      ->check(not_empty);
  command
      .add_option(
          "--from", arguments->from,
          "Begin with these weights: a folder of Hugging Face, a safetensors file in PyTorch's layout, a "
          "checkpoint or run, also of another model; default: as the config says")
      ->type_name("PATH")
      ->check(not_empty);
  command
      .add_option("--new", arguments->new_layers,
                  "Draw this layer's parameters instead of taking them from --from; may be repeated")
      ->allow_extra_args(false)
      ->type_name("LAYER");
  command
      .add_option("--leave-out", arguments->leave_out,
                  "Ignore tensor NAME of --from, and all tensors NAME.*; may be repeated")
      ->allow_extra_args(false)
      ->type_name("NAME");
  command.add_flag(
      "--allow-config-change", arguments->allow_config_change,
      "Resume although the config's mathematics differs from the checkpoint's; names what differs");
  command.add_option("--stop-after", arguments->stop_after, "Save and stop after so many steps")
      ->type_name("STEPS")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  add_device(command, arguments->device);
  command
      .add_option("--failpoint", arguments->failpoints,
                  "Inject a fault, such as kill@1,40,backward; docs/cli.md lists kinds and phases; may be "
                  "repeated")
      ->allow_extra_args(false)
      ->type_name("KIND@RANK,STEP[,PHASE]");
  command
      .add_option("--straggler", arguments->straggler,
                  "Make a worker on a CPU compute FACTOR times as long, by sleeping, such as 1:2")
      ->type_name("RANK:FACTOR");
  command
      .add_option("--trace", arguments->trace_directory,
                  "Folder for the bits of every step, which verify compares")
      ->group("");
  command
      .add_flag("--metrics-file-only", arguments->metrics_file_only,
                "Keep metrics out of everything but metrics.jsonl: a trial by another command")
      ->group("");
  CLI::Option* timeline =
      command
          .add_option("--timeline", arguments->timeline,
                      "Record what each rank does in some steps, to a new file that Perfetto opens")
          ->type_name("FILE.json")
          ->check(not_empty);
  command
      .add_option("--timeline-steps", arguments->timeline_steps,
                  "Steps to record, counted from 1, both ends included; default: five after the warm-up")
      ->type_name("FIRST:LAST")
      ->needs(timeline);
  add_output(command, arguments->output);
  add_verbose(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return train(*arguments); }; });
}

}  // namespace lockstep::cli
