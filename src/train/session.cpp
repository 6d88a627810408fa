#include "train/session.h"

#include <fmt/format.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <utility>

#include "base/text.h"
#include "train/agreement.h"
#include "train/failpoints.h"
#include "train/run_output.h"
#include "train/run_recorder.h"
#include "train/shared_directory.h"
#include "train/trace.h"

namespace lockstep {
namespace {

/// Since the process was started, by the kernel's clock ticks: libraries that load before main count too.
double process_age_ms() {
  // The name, in parentheses, may hold blanks; the 20th field behind it is the start in ticks since the
  // system's boot.
  const std::string stat = read_text_file("/proc/self/stat");
  const auto fields = split(trim(std::string_view(stat).substr(stat.rfind(')') + 1)), ' ');
  const double started_seconds =
      std::strtod(fields.at(19).c_str(), nullptr) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return 1000 * (static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - started_seconds);
}

/// Where `action` throws on any rank, all ranks throw alike.
void on_all_ranks(World& world, const std::function<void()>& action) {
  std::exception_ptr failure;
  try {
    action();
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  agree_on_outcome(world.communicator(), failure, std::chrono::minutes(5));
}

void on_first_rank(World& world, const std::function<void()>& action) {
  on_all_ranks(world, [&] {
    if (world.rank() == 0) action();
  });
}

}  // namespace

SessionResult train_session(World& world, const SessionOptions& options) {
  const bool first = world.rank() == 0;
  std::unique_ptr<DirectoryLock> lock;
  std::unique_ptr<Failpoints> failpoints;
  Trainer* running = nullptr;
  WorkerOptions worker_options;
  if (!options.failpoints.empty())
    worker_options.before_instruction = [&](const Worker& worker, const Program& program, int instruction) {
      const int64_t step = running->next_step() + (program.name == "step" ? 1 : 0);
      if (failpoints) failpoints->before_instruction(program, instruction, step, worker.memory());
    };
  const auto worker = start_worker(world, [&] {
    RunConfig config = options.load_config();
    failpoints = Failpoints::parse(options.failpoints, world.rank(), world.size());
    // Only rank 0 writes there, and on other hosts the folder may be another one.
    if (first) lock = RunOutput::claim_directory(options.output_directory, config);
    return config;
  }, {{"--out", options.output_directory.empty() ? "not given" : "given"},
      {"--stop-after", std::to_string(options.stop_after)},
      {"--failpoint", options.failpoints.empty() ? "not given" : join(options.failpoints, " ")}}, worker_options);
  const WatchedWorker watched(world, *worker);
  if (!options.output_directory.empty()) {
    if (!world.one_host()) check_shared_directory(world.communicator(), options.output_directory, world.host());
    world.control().set_crash_directory(options.output_directory + "/crash");
  }

  RunOutput output({.directory = options.output_directory, .quiet = options.quiet}, *worker);
  RunRecorder recorder(*worker);
  std::optional<TraceWriter> trace;
  TrainerEvents events;
  events.on_step = [&](const StepRecord& record) {
    recorder.add(record);
    if (trace) trace->add(record, *worker);
    if (first) output.step(record);
    if (options.on_step) options.on_step(record);
  };
  events.on_evaluation = [&](const EvaluationRecord& record) {
    if (trace) trace->add(record);
    if (first) output.evaluation(record);
  };
  events.before_checkpoint = [&](int64_t) { output.before_checkpoint(); };
  events.on_checkpoint = [&](int64_t step, const std::string& path) {
    if (first) output.checkpoint(step, path);
  };
  events.on_message = [&](const std::string& text) {
    if (first) output.message(text);
  };

  std::unique_ptr<FileSystem> failing_files;
  if (failpoints) failing_files = failpoints->wrap(posix_file_system());
  TrainerRunOptions run_options{
      .output_directory = options.output_directory, .stop_requested = [&] {
        // Asked before each step; a step takes part in the stop that follows it.
        return (options.stop_after > 0 && running->next_step() + 1 >= options.stop_after) ||
               (options.stop_requested && options.stop_requested());
      },
      .progress = worker->compiled().config().watchdog.enabled ? &world.control().progress() : nullptr,
      .mailbox = &world.control().mailbox(),
      .files = failing_files ? failing_files.get() : &posix_file_system()};
  Trainer trainer(*worker, world.communicator(), std::move(events), std::move(run_options));
  running = &trainer;
  if (first) output.show_start();
  if (!options.failpoints.empty()) on_all_ranks(world, [&] { if (failpoints) failpoints->check(worker->programs().step); });
  trainer.prepare();
  if (options.stop_after > 0 && trainer.next_step() >= options.stop_after)
    throw CollectiveError(
        fmt::format("--stop-after {}: the run has {} steps already", options.stop_after, trainer.next_step()),
        ExitCode::usage);
  on_first_rank(world, [&] { output.open(trainer.next_step()); });
  if (!options.trace_directory.empty()) trace.emplace(options.trace_directory, world.rank());

  if (failpoints) failpoints->at_start();
  recorder.set_startup_ms(process_age_ms());
  const TrainingOutcome outcome = trainer.run();
  if (first) output.finish();
  return {.report = recorder.report(world.communicator(), outcome), .stopped = outcome.stopped};
}

}  // namespace lockstep
