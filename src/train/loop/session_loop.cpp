#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/clock.h"
#include "base/ensure.h"
#include "base/log.h"
#include "comm/gather_texts.h"
#include "lockstep/error.h"
#include "train/faults/nonfinite.h"
#include "train/faults/position.h"
#include "train/loop/trainer.h"
#include "train/worker/model_state.h"

// Steps of workers that do not wait for each other, in sessions with their servers.

namespace lockstep::train {
namespace {

/// What the coordinator tells all ranks of a session that is over.
struct SessionSummary {
  run::SessionTotals totals;
  run::Staleness staleness;
};
static_assert(std::is_trivially_copyable_v<SessionSummary>);

/// COLLECTIVE: the coordinator's.
SessionSummary share_summary(comm::Communicator& world, int coordinator, SessionSummary summary) {
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("summary");
  world.broadcast(&summary, sizeof summary, coordinator, *stream);
  world.synchronize(*stream, deadline_in(comm::kPatience));
  return summary;
}

}  // namespace

int64_t Trainer::steps_to_meeting() const {
  int64_t steps = worker_->total_steps() - step_;
  const auto limit = [&](int64_t every) {
    if (every > 0) steps = std::min(steps, every - step_ % every);
  };
  if (worker_->has_eval_data()) limit(config_.trainer.eval_every_steps);
  limit(config_.checkpoint.every_steps);
  if (options_.stop_after > 0) steps = std::min(steps, std::max<int64_t>(options_.stop_after - step_, 1));
  return steps;
}

run::StepScalars Trainer::pushed_constants(int64_t first_step, int64_t updates, int64_t applied) const {
  const int64_t each = worker_->serving()->updates_per_step();
  const int64_t step = std::min(first_step + updates / each, worker_->total_steps() - 1);
  run::StepScalars constants = constants_of(step, optimizer_updates_ + applied + 1);
  constants.update.learning_rate /= parallel::async_divisor(config_.parallel.async_learning_rate, each);
  return constants;
}

void Trainer::train_one_session() {
  const int64_t first = step_, steps = steps_to_meeting();
  const auto began = Clock::now();
  Serving& serving = *worker_->serving();
  worker_->finish_step();
  if (events_.on_session_begin) events_.on_session_begin(first, first + steps);
  told_ = {};
  serving.begin(
      {.first_step = first,
       .steps = steps,
       .constants = [this, first](int64_t updates,
                                  int64_t applied) { return pushed_constants(first, updates, applied); },
       .stop_requested = [this] { return stop_is_wanted(); }});
  std::vector<int> left;
  try {
    if (worker_->is_worker()) make_granted_steps(first);
    left = worker_->end_session();
  } catch (const std::exception& error) {
    serving.abort(error.what());
    throw;
  }
  enter_phase(options_.progress, Phase::between_steps);
  if (!worker_->is_worker()) {
    waited_.busy_ms = serving.busy_ms();
    waited_.exposed_communication_ms =
        std::max(0.0, milliseconds_between(began, Clock::now()) - serving.busy_ms());
  }
  SessionSummary summary;
  if (serving.is_server()) summary = {serving.totals(), serving.staleness()};
  const bool some_are_lost = static_cast<int>(left.size()) < world_->size();
  if (some_are_lost) go_on_with(left);
  worker_->gather();
  summary = share_summary(*world_, worker_->compiled().ownership().owners().first, summary);
  tell_session(first, summary.totals);
  if (events_.on_session_end) events_.on_session_end(step_);
  if (some_are_lost && step_ < worker_->total_steps()) worker_->start_reading(static_cast<uint64_t>(step_));
  skipped_steps_ += summary.totals.skipped;
  optimizer_updates_ += summary.totals.updates - summary.totals.skipped;
  outcome_.staleness.add(summary.staleness);
  ++outcome_.sessions;
  stop_ = step_ < first + steps || (options_.stop_after > 0 && step_ >= options_.stop_after);
  if (summary.totals.skipped > 0) require_few_skips(summary.totals.skipped);
}

void Trainer::go_on_with(const std::vector<int>& left) {
  const int lost = world_->size() - static_cast<int>(left.size());
  ensure(options_.regroup != nullptr, "whoever can lose workers can go on without them");
  checkpoints_.settle();
  hear_of_checkpoints(config_.checkpoint.on_failure);
  const OwnedState state(*worker_);
  const RunPosition from = worker_->length().from();
  replicas_.reset();
  const Regrouped now = options_.regroup(left);
  worker_ = &now.worker;
  world_ = &now.world;
  worker_->go_on_from(from);
  state.restore(*worker_);
  replicas_.emplace(*worker_);
  checkpoints_.follow(*worker_, now.mailbox);
  outcome_.lost_workers += lost;
}

void Trainer::make_granted_steps(int64_t first) {
  Serving& serving = *worker_->serving();
  const int64_t each = serving.updates_per_step();
  for (;;) {
    worker_->finish_step();
    const auto asked = Clock::now();
    const std::optional<run::Grant> grant = serving.next_step();
    const auto granted = Clock::now();
    waited_.exposed_communication_ms += milliseconds_between(asked, granted);
    enter_phase(options_.progress, Phase::between_steps);
    if (!grant) return;
    hear_of_checkpoints(config_.checkpoint.on_failure);
    tell_session(first, grant->totals);
    if (stop_is_wanted() || skips_too_many(grant->totals.skipped)) serving.worker()->ask_to_stop();
    // With a bound all workers make each step, with their own part of its batch; without, each makes the next
    // part of a batch that nobody has made.
    const int64_t number = serving.has_bound() ? first + grant->step : first * each + grant->number;
    run::StepInputs inputs;
    inputs.iteration = static_cast<uint64_t>(number);
    inputs.constants = constants_of(std::min(first + grant->step, worker_->total_steps() - 1), 1);
    inputs.constants.kernels.step = static_cast<uint64_t>(number);
    const double waited_before = worker_->data_wait_ms();
    worker_->run_step(inputs);
    waited_.data_wait_ms += worker_->data_wait_ms() - waited_before;
    waited_.exposed_communication_ms += worker_->step_times().exposed_communication_ms.value_or(0);
    waited_.busy_ms = waited_.busy_ms.value_or(0) + worker_->step_times().busy_ms.value_or(0);
    require_finite(number / each);
    if (events_.on_granted_step) events_.on_granted_step({inputs.iteration, asked, granted, Clock::now()});
  }
}

void Trainer::require_finite(int64_t step) {
  const program::Verdict verdict = worker_->verdict();
  if (verdict.finite != 0 || config_.trainer.nonfinite == config::NonFinitePolicy::ignore ||
      config_.trainer.nonfinite == config::NonFinitePolicy::skip)
    return;
  std::string message = fmt::format(
      "step {}: loss {} and gradient norm {} of rank {}'s share of the batch are not both finite; its push "
      "changed nothing",
      step + 1, verdict.mean_loss(), verdict.gradient_norm, worker_->first_rank());
  if (config_.trainer.nonfinite == config::NonFinitePolicy::locate)
    message += "\n  first: " + first_nonfinite_gradient(*worker_);
  throw Error(message + "\n" + advice(verdict), ExitCode::internal);
}

bool Trainer::skips_too_many(int64_t skipped) const {
  return config_.trainer.nonfinite == config::NonFinitePolicy::skip &&
         skipped_steps_ - overflowed_steps_ + skipped >= config_.trainer.nonfinite_limit;
}

void Trainer::require_few_skips(int64_t skipped) {
  if (world_->rank() == 0)
    log_warning(fmt::format("{} updates up to step {} were skipped, since a loss or gradient was not finite",
                            skipped, step_));
  if (!skips_too_many(0)) return;
  throw comm::CollectiveError(
      fmt::format("{} updates were skipped up to step {}, since a loss or gradient was not finite, and "
                  "trainer.nonfinite_limit is {}\n{}",
                  skipped_steps_ - overflowed_steps_, step_, config_.trainer.nonfinite_limit,
                  advice({.loss_sum = 0})),
      ExitCode::internal);
}

void Trainer::tell_session(int64_t first, const run::SessionTotals& totals) {
  const int64_t done = first + totals.updates / worker_->serving()->updates_per_step();
  if (done <= step_) return;
  const auto now = Clock::now();
  const auto pushes = static_cast<double>(totals.pushes - told_.pushes);
  StepRecord record = std::exchange(waited_, {});
  const double count = totals.count - told_.count, unknown = std::numeric_limits<double>::quiet_NaN();
  record.loss = count > 0 ? (totals.loss_sum - told_.loss_sum) / count : unknown;
  record.gradient_norm = pushes > 0 ? (totals.norm_sum - told_.norm_sum) / pushes : unknown;
  const auto steps = static_cast<double>(done - step_);
  record.correct = (totals.correct - told_.correct) / steps;
  record.count = count / steps;
  record.skipped = totals.skipped > told_.skipped;
  record.step_ms = milliseconds_between(std::exchange(step_began_, now), now) / steps;
  outcome_.train_loss = record.has_loss() ? std::optional(record.loss) : std::nullopt;
  told_ = totals;
  if (record.has_loss()) record.spike = spikes_.add(done, record.loss, record.gradient_norm);
  if (record.spike && world_->rank() == 0) log_warning(record.spike->message);
  while (step_ < done) {
    record.learning_rate = constants_of(step_, 1).update.learning_rate;
    record.step = ++step_;
    if (events_.on_step) events_.on_step(record);
    // What the rank waited and computed since the last record counts once.
    record.exposed_communication_ms = record.data_wait_ms = 0;
    if (record.busy_ms) record.busy_ms = 0;
    record.skipped = false;
    record.spike.reset();
  }
  if (options_.progress != nullptr) options_.progress->set_step(step_);
}

}  // namespace lockstep::train
