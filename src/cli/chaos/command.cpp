#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>

#include "base/index.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/chaos/chaos_job.h"
#include "cli/chaos/faults.h"
#include "cli/chaos/report.h"
#include "cli/commands.h"
#include "jobs/job.h"
#include "jobs/workplace.h"
#include "lockstep/error.h"
#include "train/worker/compile_options.h"
#include "train/worker/worker.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct ChaosArguments {
  jobs::ConfigArguments config;
  jobs::OutputArguments output;
  jobs::DeviceArguments device;
  std::string kinds, directory;
  int runs = 100;
  std::optional<int> processes;
  uint64_t seed = 1;
  bool keep = false;
};

/// mpirun is what notices a lost process.
constexpr int kFewestProcesses = 2;
/// One that was disturbed once needs one restart.
constexpr int kMostRestarts = 3;

/// What the run that nobody disturbs ends with.
struct Reference {
  int64_t steps = 0;
  double seconds = 0, longest_step_ms = 0;
  std::string params_hash, state_hash;
  std::map<std::string, double> values;
};

class Chaos {
 public:
  explicit Chaos(const ChaosArguments& arguments);
  ChaosReport run();

 private:
  /// As the job does it, whose workers are all on this host.
  compile::CompiledRun compiled() const {
    return train::compile_run(config_,
                              {.world_size = layout_.world_size(), .shared_memory = true, .device = device_});
  }
  config::RunConfig load() const;
  layout::Layout chosen_layout() const;
  ChaosJob job(const std::string& name) const;
  void take_reference();
  void adapt_config();
  void adapt(const std::string& path, const std::string& value, const std::string& why);
  void adapt_watchdog();
  void describe_space();
  ChaosResult disturb(int run, ChaosKind kind);
  /// Restarts a job that has ended until it is complete.
  StartOutcome restart(const ChaosJob& job, const StartOutcome& first, int64_t reached,
                       ChaosResult& result) const;
  void compare(const ChaosJob& job, const StartOutcome& last, ChaosResult& result) const;
  /// Takes phases out that the job does not have; true if there was one.
  bool learn_from_refusal(const ChaosFault& fault, const StartOutcome& outcome);

  const ChaosArguments& arguments_;
  config::RunConfig config_;
  layout::Layout layout_;
  device::DeviceKind device_ = device::DeviceKind::cpu;
  std::vector<ChaosKind> kinds_;
  std::vector<std::string> overrides_;
  std::optional<jobs::Workplace> workplace_;
  Reference reference_;
  ChaosSpace space_;
};

config::RunConfig Chaos::load() const {
  return config::load_run_config(arguments_.config.path, overrides_, arguments_.config.layout);
}

/// As many processes as --workers or the layout says, or else two workers.
layout::Layout Chaos::chosen_layout() const {
  const layout::Layout& stated = config_.parallel.layout;
  layout::Layout wanted = stated;
  if (wanted.dp == 0) wanted.dp = kFewestProcesses;
  const int processes = arguments_.processes.value_or(wanted.world_size());
  const layout::Layout layout = layout::resolve(stated, processes);
  if (processes < kFewestProcesses)
    throw ConfigError(fmt::format("layout '{}': is one process, but faults need several; use 'dp=2'",
                                  layout::to_string(layout)));
  return layout;
}

Chaos::Chaos(const ChaosArguments& arguments)
    : arguments_(arguments), overrides_(arguments.config.all_overrides()) {
  jobs::check_can_start_jobs("chaos", kFewestProcesses);
  config_ = load();
  layout_ = chosen_layout();
  kinds_ = parse_chaos_kinds(arguments.kinds, config_, layout_.dp);
  const train::DeviceRequest request = arguments.device.request();
  const auto choice = train::choose_device(
      request, request.wish == train::DeviceWish::cpu ? device::GpuProbe{} : device::probe_gpus(), 0,
      layout_.world_size());
  device_ = choice.kind;
  if (!choice.reason.empty()) log_info(choice.reason);
  compiled().check();
  // What the environment says is meant for jobs of the user's own.
  ::unsetenv("LOCKSTEP_FAILPOINT_LOG");
  workplace_.emplace("chaos", arguments.directory);
}

ChaosJob Chaos::job(const std::string& name) const {
  jobs::TrainingCommand training{.config = arguments_.config.path,
                                 .assignments = overrides_,
                                 .layout = layout_,
                                 .device = std::string(device::name_of(device_)),
                                 .allow_shared_gpu = arguments_.device.allow_shared_gpu};
  training.assignments.push_back("metrics.progress=false");
  ChaosJob job{.processes = layout_.world_size(),
               .arguments = training.arguments(),
               .folder = workplace_->path() + "/" + name};
  // Room for a restart beside others, and for every deadline that may have to pass first.
  const auto& watchdog = config_.watchdog;
  const auto slowest =
      std::max({watchdog.compute_deadline, watchdog.input_deadline, watchdog.storage_deadline,
                watchdog.communication_deadline, watchdog.silent_after});
  job.limit_seconds = 3 * reference_.seconds + 3e-3 * static_cast<double>(slowest.count()) + 30;
  return job;
}

void Chaos::take_reference() {
  ChaosJob undisturbed = job("reference");
  undisturbed.limit_seconds = 0;
  const StartOutcome outcome = start_job(undisturbed, 1, {});
  if (outcome.code != 0) {
    workplace_->keep();
    throw jobs::job_failure("the undisturbed job", outcome, undisturbed.folder);
  }
  const Json report = Json::parse(outcome.output);
  reference_.steps = report.at("steps").get<int64_t>();
  reference_.seconds = 1e-6 * static_cast<double>(outcome.ended_us - outcome.began_us);
  if (report.contains("step_ms")) reference_.longest_step_ms = report["step_ms"].at("p99").get<double>();
  reference_.params_hash = report.at("params_hash").get<std::string>();
  reference_.state_hash = report.at("state_hash").get<std::string>();
  reference_.values = recorded_values(undisturbed.run_directory());
  log_info(fmt::format("undisturbed: {} steps on {} processes in {:.1f} s", reference_.steps,
                       layout_.world_size(), reference_.seconds));
}

void Chaos::adapt(const std::string& path, const std::string& value, const std::string& why) {
  overrides_.push_back(path + "=" + value);
  log_info(fmt::format("sets {}={}, {}", path, value, why));
}

void Chaos::adapt_watchdog() {
  const auto& watchdog = config_.watchdog;
  if (!watchdog.enabled) adapt("watchdog.enabled", "true", "since nothing else notices a stopped worker");
  const double busy = std::max(10.0, 0.02 * reference_.longest_step_ms);  // twenty times the longest step
  std::vector<std::string> shorter;
  for (const auto& [name, now, most] :
       {std::tuple("heartbeat_seconds", watchdog.heartbeat_interval, 0.25),
        std::tuple("silent_seconds", watchdog.silent_after, 3.0),
        std::tuple("compute_seconds", watchdog.compute_deadline, busy),
        std::tuple("input_seconds", watchdog.input_deadline, busy),
        std::tuple("communication_seconds", watchdog.communication_deadline, busy),
        std::tuple("storage_seconds", watchdog.storage_deadline, std::max(10.0, reference_.seconds))})
    if (1e-3 * static_cast<double>(now.count()) > most) {
      shorter.push_back(fmt::format("watchdog.{}={}", name, exact(most)));
      overrides_.push_back(shorter.back());
    }
  if (!shorter.empty())
    log_info(fmt::format("sets {}, so that a fault is noticed sooner", join(shorter, ", ")));
}

/// Nothing of this changes what is computed.
void Chaos::adapt_config() {
  const int64_t steps = reference_.steps;
  if (config_.checkpoint.every_steps == 0 || config_.checkpoint.every_steps >= steps)
    adapt("checkpoint.every_steps", std::to_string(std::max(int64_t{1}, steps / 5)),
          "so that there is something to resume from");
  const auto& trainer = config_.trainer;
  const bool flips = std::count(kinds_.begin(), kinds_.end(), ChaosKind::flip) > 0;
  if (flips && (trainer.check_every_steps == 0 || trainer.check_every_steps > steps / 2))
    adapt("trainer.check_every_steps", std::to_string(std::max(int64_t{1}, steps / 10)),
          "so that a flipped bit is looked for");
  adapt_watchdog();
  if (config_.metrics.log_every_steps > 1) adapt("metrics.log_every_steps", "1", "to see how far a run came");
  config_ = load();
}

void Chaos::describe_space() {
  space_.workers = layout_.workers();
  space_.steps = reference_.steps;
  const auto every = [&](int64_t interval, bool at_end) {
    std::vector<int64_t> steps;
    for (int64_t step = interval; interval > 0 && step < reference_.steps; step += interval)
      steps.push_back(step);
    if (at_end) steps.push_back(reference_.steps);
    return steps;
  };
  space_.saved_steps = every(config_.checkpoint.every_steps, config_.checkpoint.at_end);
  const bool evaluates = std::any_of(reference_.values.begin(), reference_.values.end(),
                                     [](const auto& value) { return value.first.ends_with(" eval_loss"); });
  if (evaluates)
    space_.evaluated_steps = every(config_.trainer.eval_every_steps, config_.trainer.eval_at_end);
  const compile::CompiledRun run = compiled();
  for (int rank = 0; rank < layout_.world_size(); ++rank) {
    std::map<program::InstructionKind, int> most;  // in one of the programs
    const compile::CompiledRun::RankPrograms programs = run.compile(rank);
    for (const program::Program* program : {&programs.step, &programs.serve}) {
      std::map<program::InstructionKind, int> count;
      for (const auto& instruction : program->instructions)
        most[instruction.kind] = std::max(most[instruction.kind], ++count[instruction.kind]);
    }
    auto& instructions = space_.instructions.emplace_back();
    for (const auto& [kind, count] : most) instructions.push_back({kind, count});
  }
}

bool Chaos::learn_from_refusal(const ChaosFault& fault, const StartOutcome& outcome) {
  if (outcome.code != static_cast<int>(ExitCode::usage) || !fault.failpoint ||
      fault.failpoint->place != train::FaultPlace::instruction)
    return false;
  return std::erase_if(nth(space_.instructions, fault.failpoint->rank), [&](const auto& instructions) {
           return instructions.kind == fault.failpoint->instruction;
         }) > 0;
}

ChaosResult Chaos::disturb(int run, ChaosKind kind) {
  ChaosResult result{.run = run};
  const ChaosJob disturbed = job(fmt::format("run-{:03}", run));
  StartOptions options;
  StartOutcome first;
  do {
    result.fault = draw_fault(space_, kind, arguments_.seed, static_cast<uint32_t>(run));
    options = {};
    if (result.fault.failpoint)
      options.more = {"--failpoint", train::to_text(*result.fault.failpoint)};
    else
      options.preempt_at = result.fault.step;
    std::error_code ignored;
    fs::remove_all(disturbed.folder, ignored);
    first = start_job(disturbed, 1, options);
  } while (learn_from_refusal(result.fault, first));

  const auto happened_us = result.fault.failpoint ? failpoint_time(disturbed) : first.preempted_us;
  const int64_t reached = last_step(disturbed.run_directory());
  result.happened = happened_us.has_value();
  result.code = first.code;
  const auto expected =
      result.happened ? expected_codes(result.fault, config_, space_.steps) : std::vector<int>{0};
  result.detected = first.code && std::count(expected.begin(), expected.end(), *first.code) > 0;
  if (!first.code)
    result.problems.push_back(
        fmt::format("no rank noticed within {:.0f} s, so the job was ended", disturbed.limit_seconds));
  else if (!result.detected)
    result.problems.push_back(fmt::format("exit code {}, expected {}: {}", *first.code,
                                          fmt::join(expected, " or "), jobs::last_lines(first.error, 1)));
  if (happened_us && first.code && *first.code != 0)
    result.detection_seconds = 1e-6 * static_cast<double>(first.ended_us - *happened_us);
  result.leftover_processes = first.leftover_processes;

  const StartOutcome last = first.code == 0 ? first : restart(disturbed, first, reached, result);
  if (last.code == 0) compare(disturbed, last, result);
  if (result.leftover_processes > 0)
    result.problems.push_back(fmt::format("{} processes outlived mpirun", result.leftover_processes));
  if (kind == ChaosKind::preempt && result.steps_lost.value_or(0) > 0)
    result.problems.push_back(
        fmt::format("a stop request lost {} steps, although it should save", *result.steps_lost));

  result.replay = disturbed.command_line(options.more);
  if (!result.fault.failpoint)
    result.replay += fmt::format("  # and SIGUSR1 to mpirun after step {}", result.fault.step);
  return result;
}

StartOutcome Chaos::restart(const ChaosJob& job, const StartOutcome& first, int64_t reached,
                            ChaosResult& result) const {
  StartOutcome last = first;
  while (last.code != 0 && result.restarts < kMostRestarts) {
    ++result.restarts;
    last = start_job(job, 1 + result.restarts,
                     {.more = {"--resume", "auto"}, .preempt_at = {}, .await_step = reached});
    result.leftover_processes += last.leftover_processes;
    if (last.awaited_us && !result.recovery_seconds)
      result.recovery_seconds = 1e-6 * static_cast<double>(*last.awaited_us - first.ended_us);
    // A run that was complete, but for saving it, has nothing beyond.
    if (last.code == 0 && !result.recovery_seconds)
      result.recovery_seconds = 1e-6 * static_cast<double>(last.ended_us - first.ended_us);
    if (last.code == 0) result.steps_lost = std::max(int64_t{0}, reached - last.resumed_step);
  }
  if (last.code != 0)
    result.problems.push_back(fmt::format(
        "was not complete after {} restarts; the last one ended with {}: {}", result.restarts,
        last.code ? fmt::format("exit code {}", *last.code) : "no end", jobs::last_lines(last.error, 1)));
  return last;
}

void Chaos::compare(const ChaosJob& job, const StartOutcome& last, ChaosResult& result) const {
  const Json report = Json::parse(last.output, nullptr, /*allow_exceptions=*/false);
  if (!report.is_object()) {
    result.problems.push_back("printed no report");
    return;
  }
  const std::string params = report.value("params_hash", ""), state = report.value("state_hash", "");
  const auto values = recorded_values(job.run_directory());
  // The undisturbed run may have recorded fewer steps.
  const auto different =
      std::find_if(reference_.values.begin(), reference_.values.end(), [&](const auto& value) {
        const auto found = values.find(value.first);
        return found == values.end() || found->second != value.second;
      });
  const bool same_values = different == reference_.values.end();
  result.bits_equal = same_values && params == reference_.params_hash && state == reference_.state_hash;
  if (result.bits_equal || !keeps_bits(result.fault, config_)) return;
  std::string problem = "ended with other bits than the undisturbed run: ";
  if (same_values) {
    problem += fmt::format("params_hash {} instead of {}, state_hash {} instead of {}", params,
                           reference_.params_hash, state, reference_.state_hash);
  } else {
    const auto found = values.find(different->first);
    problem +=
        fmt::format("first at step {}, {} instead of {}",
                    different->first.substr(different->first.find_first_not_of('0')),
                    found == values.end() ? "nothing" : exact(found->second), exact(different->second));
  }
  result.problems.push_back(problem);
}

ChaosReport Chaos::run() {
  take_reference();
  adapt_config();
  describe_space();
  ChaosReport report{.steps = reference_.steps,
                     .reference_seconds = reference_.seconds,
                     .params_hash = reference_.params_hash,
                     .seed = arguments_.seed,
                     .keeps_no_bits = config_.parallel.layout.has_sessions()};
  if (arguments_.keep) workplace_->keep();
  for (int run = 1; run <= arguments_.runs; ++run) {
    // Kinds take turns, so that each gets its share.
    const ChaosResult result = disturb(run, kinds_[static_cast<size_t>(run - 1) % kinds_.size()]);
    log_info(summary_line(result));
    std::error_code ignored;
    if (!result.problems.empty())
      workplace_->keep();
    else if (!arguments_.keep)
      fs::remove_all(job(fmt::format("run-{:03}", run)).folder, ignored);
    report.results.push_back(result);
  }
  if (report.wrong() > 0 || arguments_.keep) report.kept_folder = workplace_->path();
  return report;
}

int chaos(const ChaosArguments& arguments) {
  const ChaosReport report = Chaos(arguments).run();
  write_result(arguments.output.json ? to_json(report) + "\n" : describe(report));
  return static_cast<int>(report.passed() ? ExitCode::done : ExitCode::internal);
}

}  // namespace

void add_chaos_command(CLI::App& program, CommandAction& selected) {
  auto& command =
      add_subcommand(program, "chaos",
                     "Injects faults into a job, restarts it, and compares its result with that of "
                     "an undisturbed run",
                     "  lockstep chaos configs/digits_quickstart.textproto --data-dir digits "
                     "--set trainer.steps=100 --runs 50");
  const auto arguments = std::make_shared<ChaosArguments>();
  add_config(command, arguments->config, /*with_data=*/true);
  command.add_option("--runs", arguments->runs, "Disturbed runs, each with one fault")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  add_layout(command, arguments->config);
  command
      .add_option("--workers", arguments->processes,
                  "Processes of the job, on this host; default: as many as the layout says, or 2")
      ->check(CLI::Range(kFewestProcesses, 1024));
  command.add_option("--seed", arguments->seed, "Determines ranks, steps and phases of the faults")
      ->capture_default_str();
  command.add_option("--kinds", arguments->kinds, "Kinds of faults, used in turn; default: all that apply")
      ->type_name("kill,stop,hang,delay,nan,flip,enospc,error,preempt");
  command.add_option("--out", arguments->directory, "Empty folder for the runs; successful ones are removed")
      ->type_name("DIR");
  command.add_flag("--keep", arguments->keep, "Keep all runs");
  add_device(command, arguments->device);
  add_output(command, arguments->output);
  command.callback([&selected, arguments] { selected = [arguments] { return chaos(*arguments); }; });
}

}  // namespace lockstep::cli
