#include "train/start/run_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/ensure.h"
#include "base/log.h"
#include "base/text.h"
#include "layout/layout.h"
#include "train/start/faster_layout.h"
#include "train/start/long_work.h"
#include "train/start/on_all_ranks.h"
#include "train/start/run_traits.h"
#include "train/start/shared_directory.h"

namespace lockstep::train {
namespace {

/// How long a job that has failed waits for each sink of metrics.
constexpr std::chrono::milliseconds kLastWords{2000};

/// How long rank 0 waits for parts of the last histograms. They were sent before other ranks came here.
constexpr std::chrono::seconds kLastHistograms{10};

/// Likewise, if the watchdog ends the process: the launcher may not wait for longer.
constexpr std::chrono::milliseconds kWatchdogPatience{500};

/// How old what `lockstep explain` shows of a run that goes on may be, if steps are short.
constexpr std::chrono::milliseconds kExplanationInterval{3000};

}  // namespace

void Run::Parts::last_words() noexcept {
  world_.set_farewell({});
  watch_.abandon_machines();
  if (first_ && output_) output_->close(observe::RunEnd::failed, "", kLastWords);
  watch_.abandon_timeline_soon("the run failed");
}

void Run::Parts::start(const std::function<config::RunConfig()>& load_config) {
  WorkerOptions worker_options;
  if (!options_.failpoints.empty())
    worker_options.before_instruction = [this](const Worker& worker, const program::Program& program,
                                               uint64_t iteration, int instruction) {
      // Of a step, the end may run when the next one has begun.
      const bool steps = program.name == "step" || program.name == "serve";
      const int64_t step = steps ? worker.step_of(program, iteration) + 1 : trainer_->next_step();
      if (failpoints_) failpoints_->before_instruction(program, instruction, step, worker.memory());
    };
  std::optional<Straggler> straggler;
  if (!options_.straggler.empty()) straggler = parse_straggler(options_.straggler);
  if (straggler && straggler->rank == world_.rank()) worker_options.slowdown = straggler->factor;
  if (!options_.timeline.empty()) worker_options.recorder = &stamps_;
  DeviceRequest device = options_.device;
  if (!options_.quiet && world_.is_complete()) device.say = log_info;
  worker_ = start_worker(
      world_, load_config, device,
      {{"--out", options_.output_directory.empty() ? "not given" : "given"},
       {"--stop-after", std::to_string(options_.stop_after)},
       {"--timeline", options_.timeline.empty() ? "not given" : "given"},
       {"--trace", options_.trace_directory.empty() ? "not given" : "given"},
       {"--failpoint", options_.failpoints.empty() ? "not given" : join(options_.failpoints, " ")},
       {"--straggler", options_.straggler.empty() ? "not given" : options_.straggler}},
      worker_options);
  if (straggler) check(*straggler);
  watched_.emplace(world_, *worker_);
}

/// On all ranks alike.
void Run::Parts::check(const Straggler& straggler) const {
  const compile::CompiledRun& run = worker_->compiled();
  if (straggler.rank >= run.layout().workers())
    throw comm::CollectiveError(
        fmt::format("--straggler {}: is no worker; the workers of layout '{}' are ranks 0 to {}",
                    to_text(straggler), layout::to_string(run.layout()), run.layout().workers() - 1),
        ExitCode::usage);
  if (run.device() != device::DeviceKind::cpu)
    throw comm::CollectiveError("--straggler: slows only workers on CPUs; remove it, or use --device cpu",
                                ExitCode::usage);
}

void Run::Parts::make_worker() {
  start([this] {
    config::RunConfig config = options_.load_config();
    failpoints_ = Failpoints::parse(options_.failpoints, world_.rank(), world_.size());
    // Only rank 0 writes there, and on other hosts the folder may be another one.
    if (first_) lock_ = RunOutput::claim_directory(options_.output_directory, config);
    return config;
  });
  if (!options_.trace_directory.empty() && worker_->serving() != nullptr)
    throw ConfigError(
        fmt::format("--trace: runs are compared bit by bit, but with layout '{}' results depend on the order "
                    "in which workers arrive",
                    layout::to_string(worker_->compiled().layout())));
  ensure(worker_->config().metrics.histogram_every_steps == 0 || worker_->serving() == nullptr,
         "the rules of layouts refuse histograms of workers that do not step together");
  const std::string& out = options_.output_directory;
  world_.control().set_crash_directory(out.empty() ? "" : out + "/crash");
  // Containers of one host may have folders of their own.
  if (!out.empty() && world_.size() > 1) check_shared_directory(world_.communicator(), out, world_.host());
}

Regrouped Run::Parts::regroup(const std::vector<int>& left) {
  enter(Phase::prepare);
  const observe::StartupTimes startup = world_.startup();
  config::RunConfig config = worker_->config();
  config.parallel.layout =
      layout::without_workers(worker_->compiled().layout(), world_.size() - static_cast<int>(left.size()));
  recorder_->part();
  account_->part();
  watch_.part();
  watched_.reset();
  if (worker_->serving()->has_lost_transfers()) former_.push_back(std::move(worker_));
  worker_.reset();
  world_.go_on_with(left);
  start([&] { return config; });
  world_.startup() = startup;
  recorder_->follow(*worker_);
  account_->follow(*worker_);
  output_->follow(*worker_);
  watch_.follow(*worker_);
  if (first_)
    log_warning(fmt::format("the run goes on as layout '{}' in {} processes, with new rank numbers",
                            layout::to_string(worker_->compiled().layout()), world_.size()));
  enter(Phase::between_steps);
  return {*worker_, world_.communicator(), &world_.mailbox()};
}

TrainerEvents Run::Parts::events() {
  TrainerEvents events;
  events.on_step = [this](const StepRecord& record) {
    world_.startup().end(observe::StartupPart::first_step);
    recorder_->add(record);
    account_->add(record);
    if (trace_) trace_->add(record, *worker_, world_.communicator());
    watch_.after_step(record.step);
    if (first_) {
      StepRecord shown = record;
      shown.speed_of_light = account_->speed_of_light(record);
      output_->step(shown);
    }
    if (histograms_) histograms_->collect(Clock::now());
    if (noise_scale_) noise_scale_->collect(Clock::now());
    if (explanation_ && explanation_->due()) explanation_->replace(observe::to_json(explain_so_far()) + "\n");
    if (options_.on_step) options_.on_step(record);
  };
  events.on_evaluation = [this](const EvaluationRecord& record) {
    // That of the step at which the run was stopped comes before the first step.
    world_.startup().end(observe::StartupPart::other);
    if (trace_) trace_->add(record);
    if (first_ && !finished_) output_->evaluation(record);
  };
  events.before_checkpoint = [this](int64_t) {
    ++saves_;
    output_->before_checkpoint();
  };
  events.on_checkpoint = [this](int64_t step, const std::string& path) {
    if (first_) output_->checkpoint(step, path);
  };
  events.on_message = [this](const std::string& text) {
    if (first_) output_->message(text);
  };
  events.on_text = [this](int64_t step, const std::string& text) { output_->text(step, text); };
  events.on_session_begin = [this](int64_t done, int64_t last) { watch_.session_begins(done, last); };
  events.on_session_end = [this](int64_t done) { watch_.session_ends(done); };
  events.on_granted_step = [this](const GrantedStep& step) { watch_.granted_step(step); };
  return events;
}

/// As far as rank 0 knows.
observe::Explanation Run::Parts::explain_so_far() const {
  observe::RunReport known = recorder_->so_far(world_.hosts(), watch_.machines());
  known.explanation = account_->so_far();
  known.explanation->advice =
      observe::advise(known, run_traits(*worker_, {.config_words = {}, .saves = saves_, .goes_on = true}));
  return *known.explanation;
}

void Run::Parts::make_trainer() {
  if (failpoints_) failing_files_ = failpoints_->wrap(posix_file_system());
  const bool watched = worker_->config().watchdog.enabled;
  const int64_t histogram_every_steps = metrics_of(output_options(), worker_->config()).histogram_every_steps;
  if (histogram_every_steps > 0)
    histograms_.emplace(*worker_, StepHistogramsOptions{.every_steps = histogram_every_steps,
                                                        .mailbox = &world_.control().mailbox(),
                                                        .write = [this](observe::MetricsRecord record) {
                                                          output_->histograms(std::move(record));
                                                        }});
  const int64_t noise_scale_every_steps =
      metrics_of(output_options(), worker_->config()).noise_scale_every_steps;
  if (noise_scale_every_steps > 0) {
    worker_->compiled().require_noise();
    noise_scale_.emplace(*worker_, NoiseScaleOptions{.every_steps = noise_scale_every_steps,
                                                     .mailbox = &world_.control().mailbox(),
                                                     .write = [this](int64_t step, double scale) {
                                                       output_->noise_scale(step, scale);
                                                     }});
  }
  // Trials by other commands show none.
  if (worker_->config().trainer.sample.every_steps > 0 && !options_.metrics_file_only)
    texts_.emplace(*worker_);
  trainer_.emplace(
      *worker_, world_.communicator(), events(),
      TrainerRunOptions{.output_directory = options_.output_directory,
                        .stop_requested = options_.stop_requested,
                        .stop_after = options_.stop_after,
                        .progress = watched ? &world_.control().progress() : nullptr,
                        .phases = &phases_,
                        .mailbox = &world_.mailbox(),
                        .files = failing_files_ ? failing_files_.get() : &posix_file_system(),
                        .regroup = [this](const std::vector<int>& left) { return regroup(left); },
                        .histograms = histograms_ ? &*histograms_ : nullptr,
                        .noise_scale = noise_scale_ ? &*noise_scale_ : nullptr,
                        .texts = texts_ ? &*texts_ : nullptr,
                        .drawing_threads = idle_threads(world_.launch())});
}

TimelineWish Run::Parts::timeline_wish() const {
  const int64_t total = worker_->total_steps();
  return {.path = options_.timeline,
          .steps = options_.timeline_steps,
          .done = trainer_->next_step(),
          .total = options_.stop_after > 0 ? std::min(options_.stop_after, total) : total};
}

void Run::Parts::begin() {
  if (first_) output_->show_start();
  if (!options_.failpoints.empty())
    on_all_ranks(world_, [this] {
      if (!failpoints_) return;
      failpoints_->check(worker_->programs().step, worker_->programs().serve);
      if (worker_->compiled().layout().mode == layout::ServerMode::asynchronous)
        failpoints_->leave_out_steps();
    });
  world_.startup().end(observe::StartupPart::other);
  trainer_->prepare();
  world_.startup().end(observe::StartupPart::parameters);
  if (options_.stop_after > 0 && trainer_->next_step() >= options_.stop_after)
    throw comm::CollectiveError(fmt::format("--stop-after {}: the run has {} steps already",
                                            options_.stop_after, trainer_->next_step()),
                                ExitCode::usage);
  watch_.record(timeline_wish(), *worker_, stamps_, phases_);
  on_first_rank(world_, [this] {
    const bool several_hosts = !world_.one_host();
    output_->open(trainer_->next_step(), trainer_->run_id(), several_hosts);
  });
  // A run that is complete stays as it is.
  if (!is_complete())
    watch_.sample(machine_wishes(output_options(), worker_->config()), *worker_, trainer_->next_step(),
                  [this](observe::MetricsRecord record) { output_->machine(std::move(record)); });
  if (first_ && !options_.output_directory.empty() && !options_.metrics_file_only && !is_complete())
    explanation_.emplace(options_.output_directory + "/explain.json", kExplanationInterval);
  if (first_)
    world_.set_farewell([this] {
      output_->abandon(kWatchdogPatience);
      watch_.abandon_timeline_soon("the watchdog ended the run");
    });
  if (!options_.trace_directory.empty()) trace_.emplace(options_.trace_directory, world_.rank());
  if (failpoints_) failpoints_->at_start();
}

RunOutputOptions Run::Parts::output_options() const {
  return {.directory = options_.output_directory,
          .quiet = options_.quiet,
          .metrics_file_only = options_.metrics_file_only,
          .version = options_.version};
}

void Run::Parts::prepare() {
  make_worker();
  enter(Phase::prepare);
  output_.emplace(output_options(), *worker_);
  recorder_.emplace(*worker_, world_.startup(), world_.host());
  account_.emplace(*worker_, phases_);
  make_trainer();
  begin();
  world_.startup().end(observe::StartupPart::other);
}

/// COLLECTIVE.
void Run::Parts::add_advice(RunResult& result, const TrainingOutcome& outcome) {
  RunCircumstances circumstances{
      .config_words = options_.config_words, .one_host = world_.one_host(), .saves = saves_};
  // Trials by other commands compare layouts themselves; who stops a run gives it little time to end.
  if (!options_.metrics_file_only && !outcome.stopped)
    circumstances.faster_layout =
        predict_faster_layout(world_, *worker_, result.report, outcome.steps - outcome.first_step);
  // For it, rank 0 compiles plans of other batches and layouts, which may take longer than ranks wait for
  // each other at the end.
  LongWork work(world_.communicator(), {.patience = comm::kPatience});
  if (first_) {
    circumstances.gets_on = [this, &work] {
      enter(Phase::report);  // for the watchdog, too
      work.gets_on();
    };
    try {
      result.report.explanation->advice = observe::advise(result.report, run_traits(*worker_, circumstances));
    } catch (const std::exception& error) {
      log_warning(fmt::format("there is no advice: {}", error.what()));
    }
  }
  work.done();
}

RunResult Run::Parts::finish() {
  const TrainingOutcome outcome = trainer_->finish();
  enter(Phase::report);
  phases_.enter(observe::RunPhase::end);
  watch_.finish();
  if (histograms_) histograms_->collect(deadline_in(kLastHistograms));
  if (noise_scale_) noise_scale_->collect(deadline_in(kLastHistograms));
  if (first_) output_->finish();
  finished_ = true;
  RunResult result{.report = recorder_->report(world_.communicator(), outcome, watch_.machines()),
                   .stopped = outcome.stopped};
  if (noise_scale_) result.report.noise_scale = noise_scale_->value();
  result.report.explanation = account_->explain(world_.communicator());
  add_advice(result, outcome);
  if (explanation_) explanation_->replace(observe::to_json(*result.report.explanation) + "\n");
  world_.set_farewell({});
  // A slow tracker is no worker that is stuck.
  enter(Phase::outside);
  if (first_)
    output_->close(outcome.stopped ? observe::RunEnd::killed : observe::RunEnd::finished,
                   observe::to_json(result.report));
  return result;
}

}  // namespace lockstep::train
