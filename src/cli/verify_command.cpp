#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/covering_layouts.h"
#include "device/device.h"
#include "jobs/job.h"
#include "jobs/traced_training.h"
#include "jobs/workplace.h"
#include "layout/layout.h"
#include "lockstep/error.h"
#include "train/loop/trace.h"
#include "train/worker/compile_options.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

struct VerifyArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  jobs::DeviceArguments device;
  std::string layouts, directory;
  int64_t steps = 0, resume_at = 0;
  int processes = 4;  ///< without layouts

  /// REPRODUCIBLE comes first, so that --set can replace it.
  std::vector<std::string> overrides() const {
    std::vector<std::string> all = {"parallel.reduction=REPRODUCIBLE"};
    for (const auto& assignment : config.all_overrides()) all.push_back(assignment);
    return all;
  }
};

/// One training, whole or in two parts, and how it compares with the first one.
struct VerifiedRun {
  std::string name;  ///< "dp=2", "dp=2, from step 25 dp=4"
  jobs::TracedTraining training;
};

/// The first `steps` of the run that the config describes, with its schedule; all of it if `steps` is 0.
std::vector<std::string> stop_after(int64_t steps) {
  if (steps == 0) return {};
  return {"--stop-after", std::to_string(steps)};
}

class Verification {
 public:
  explicit Verification(const VerifyArguments& arguments)
      : arguments_(arguments),
        layouts_(arguments.layouts.empty() ? covering_layouts(arguments.processes)
                                           : layout::parse_layouts(arguments.layouts)) {
    if (arguments.layouts.empty()) leave_out_refused();
    check();
    workplace_.emplace("verify", arguments.directory);
  }

  /// Runs everything, comparing each run with the first.
  void run() {
    for (const auto& layout : layouts_) add(layout::to_string(layout), whole(layout));
    if (arguments_.resume_at > 0)
      for (size_t i = 0; i < layouts_.size(); ++i) {
        const layout::Layout& next = layouts_[(i + 1) % layouts_.size()];
        add(fmt::format("{}, from step {} {}", layout::to_string(layouts_[i]), arguments_.resume_at + 1,
                        layout::to_string(next)),
            resumed(layouts_[i], next));
      }
    if (!identical()) workplace_->keep();
  }

  bool identical() const {
    return std::none_of(runs_.begin(), runs_.end(),
                        [](const auto& run) { return run.training.difference.has_value(); });
  }
  std::string table() const;
  Json json() const;

 private:
  config::RunConfig load(const layout::Layout& layout) const {
    return config::load_run_config(arguments_.config.path, arguments_.overrides(), layout::to_string(layout));
  }
  void leave_out_refused();
  void check() const;
  void check(const layout::Layout& layout) const;
  VerifiedRun whole(const layout::Layout& layout);
  VerifiedRun resumed(const layout::Layout& first, const layout::Layout& next);
  void train(const layout::Layout& layout, const std::string& directory,
             const std::vector<std::string>& options, jobs::TracedTraining& training);
  void add(const std::string& name, VerifiedRun run);

  const VerifyArguments& arguments_;
  std::vector<layout::Layout> layouts_;
  std::optional<jobs::Workplace> workplace_;
  std::vector<VerifiedRun> runs_;
  int children_ = 0;
};

/// What a layout's processes will compute on, as far as this host tells.
device::DeviceKind device_of_workers(const jobs::DeviceArguments& arguments) {
  const bool on_gpus =
      arguments.device == "cuda" || (arguments.device == "auto" && !device::probe_gpus().devices.empty());
  return on_gpus ? device::DeviceKind::cuda : device::DeviceKind::cpu;
}

layout::Layout with_one_replica(layout::Layout layout) {
  layout.dp = 1;
  return layout;
}

/// Of layouts that nobody named, those that the config cannot have. One process must do.
void Verification::leave_out_refused() {
  const layout::Layout one = layouts_.front();
  const device::DeviceKind device = device_of_workers(arguments_.device);
  std::erase_if(layouts_, [&](const layout::Layout& layout) {
    if (layout == one) return false;
    try {
      train::compile_run(load(layout), {.world_size = layout.world_size(), .device = device});
      return false;
    } catch (const ConfigError& error) {
      log_info(fmt::format("layout '{}' is skipped: {}", layout::to_string(layout), error.what()));
      return true;
    }
  });
}

/// Refuses what cannot work before anything runs.
void Verification::check() const {
  jobs::check_can_start_jobs("verify", 1);
  if (layouts_.size() < 2)
    throw ConfigError("--layouts: name at least two layouts to compare, such as \"dp=1; dp=2\"");
  const config::RunConfig config = load(layouts_[0]);
  const int64_t last = arguments_.steps > 0 ? arguments_.steps : config.trainer.steps;
  if (arguments_.resume_at > 0 && last > 0 && arguments_.resume_at >= last)
    throw ConfigError(
        fmt::format("--resume-at {}: must be before the last of {} steps", arguments_.resume_at, last));
  for (const auto& layout : layouts_) check(layout);
}

void Verification::check(const layout::Layout& layout) const {
  const std::string text = layout::to_string(layout);
  if (layout.dp == 0)
    throw ConfigError(
        fmt::format("layout '{}': must set dp, since verify starts as many processes as a layout needs (did "
                    "you mean '{}'?)",
                    text, layout::to_string(with_one_replica(layout))));
  jobs::check_can_start_jobs("verify", layout.world_size());
  try {
    const int processes = layout.world_size();
    train::compile_run(load(layout), {.world_size = processes,
                                      .shared_memory = processes > 1,
                                      .device = device_of_workers(arguments_.device)})
        .check();
  } catch (const ConfigError& error) {
    const std::string message = error.what(), place = fmt::format("layout '{}': ", text);
    throw ConfigError(message.starts_with(place) ? message : place + message);
  }
}

void Verification::train(const layout::Layout& layout, const std::string& directory,
                         const std::vector<std::string>& options, jobs::TracedTraining& training) {
  const jobs::TrainingCommand command{.config = arguments_.config.path,
                                      .assignments = arguments_.overrides(),
                                      .layout = layout,
                                      .device = arguments_.device.device,
                                      .allow_shared_gpu = arguments_.device.allow_shared_gpu};
  try {
    jobs::run_traced(command, options, directory, training);
  } catch (...) {
    workplace_->keep();
    throw;
  }
}

VerifiedRun Verification::whole(const layout::Layout& layout) {
  VerifiedRun run;
  train(layout, fmt::format("{}/{:02}-{}", workplace_->path(), ++children_, layout::to_string(layout)),
        stop_after(arguments_.steps), run.training);
  return run;
}

VerifiedRun Verification::resumed(const layout::Layout& first, const layout::Layout& next) {
  VerifiedRun run;
  const std::string stopped =
      fmt::format("{}/{:02}-{}-stopped", workplace_->path(), ++children_, layout::to_string(first));
  auto options = stop_after(arguments_.resume_at);
  options.insert(options.end(), {"--out", stopped + "/run"});
  train(first, stopped, options, run.training);
  if (run.training.difference) return run;
  options = stop_after(arguments_.steps);
  options.insert(options.end(), {"--resume", stopped + "/run"});
  train(next, fmt::format("{}/{:02}-{}-resumed", workplace_->path(), ++children_, layout::to_string(next)),
        options, run.training);
  return run;
}

void Verification::add(const std::string& name, VerifiedRun run) {
  run.name = name;
  if (!runs_.empty()) jobs::compare_traces(runs_[0].name, runs_[0].training, name, run.training);
  log_info(fmt::format("{}: {} steps, {}", name, run.training.trace.steps.size(),
                       run.training.difference ? "DIFFERENT" : "identical"));
  runs_.push_back(std::move(run));
}

std::string Verification::table() const {
  size_t width = std::string("layout").size();
  for (const auto& run : runs_) width = std::max(width, run.name.size());
  std::string text = fmt::format("{:<{}}  {:>6}  {:>10}  {:<16}  {}\n", "layout", width, "steps", "samples/s",
                                 "params hash", "bits");
  for (const auto& run : runs_) {
    const auto speed = run.training.report.find("samples_per_second");
    text +=
        fmt::format("{:<{}}  {:>6}  {:>10}  {:<16}  {}\n", run.name, width, run.training.trace.steps.size(),
                    speed == run.training.report.end() ? "-" : fmt::format("{:.1f}", speed->get<double>()),
                    run.training.report.at("params_hash").get<std::string>(),
                    run.training.difference ? "different" : "identical");
  }
  for (const auto& run : runs_)
    if (run.training.difference)
      return text + run.name + " " + jobs::describe_difference(run.training) +
             fmt::format("traces are in {}\n", workplace_->path());
  return text +
         fmt::format(
             "identical in {} runs: loss and gradient norm of every step, all parameters and optimizer "
             "state after it, and evaluations\n",
             runs_.size());
}

Json Verification::json() const {
  Json json;
  json["identical"] = identical();
  for (const auto& run : runs_) {
    Json entry = {{"layout", run.name},
                  {"steps", run.training.trace.steps.size()},
                  {"identical", !run.training.difference}};
    for (const char* field : {"samples_per_second", "params_hash", "state_hash", "world_size"})
      if (run.training.report.contains(field)) entry[field] = run.training.report[field];
    if (const auto& difference = run.training.difference)
      entry["difference"] = {{"step", difference->step},
                             {"name", difference->name},
                             {"first", difference->first},
                             {"here", difference->second},
                             {"more", difference->more}};
    json["runs"].push_back(std::move(entry));
  }
  if (!identical()) json["traces"] = workplace_->path();
  return json;
}

int verify(const VerifyArguments& arguments) {
  Verification verification(arguments);
  verification.run();
  write_result(arguments.output.json ? verification.json().dump() + "\n" : verification.table());
  return static_cast<int>(verification.identical() ? ExitCode::done : ExitCode::internal);
}

}  // namespace

void add_verify_command(CLI::App& program, CommandAction& selected) {
  auto& command = add_subcommand(
      program, "verify",
      "Trains a config in several layouts and compares all bits; shows the first difference",
      "  lockstep verify configs/mnist_lenet.textproto --data-dir DIR --layouts \"dp=1; dp=2; dp=4\" --steps "
      "50");
  const auto arguments = std::make_shared<VerifyArguments>();
  add_config(command, arguments->config, /*with_data=*/true);
  command
      .add_option("--layouts", arguments->layouts,
                  "Layouts, separated by ';'; others are compared with the first. Default: a list with every "
                  "schedule and mode that fits the config and --processes")
      ->type_name("LIST");
  command
      .add_option("--processes", arguments->processes,
                  "Without --layouts: the most processes of a layout (default: 4)")
      ->check(CLI::Range(1, 64))
      ->excludes("--layouts");
  command.add_option("--steps", arguments->steps, "Only so many first steps of the run; default: all steps")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command
      .add_option("--resume-at", arguments->resume_at,
                  "Also stop each layout after so many steps and resume it in the next one of the list")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command.add_option("--out", arguments->directory, "Empty folder for trace and output of every run")
      ->type_name("DIR");
  add_device(command, arguments->device);
  add_output(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return verify(*arguments); }; });
}

}  // namespace lockstep::cli
