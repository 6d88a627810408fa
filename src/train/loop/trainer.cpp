#include "train/loop/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "comm/gather_texts.h"
#include "lockstep/error.h"
#include "train/faults/position.h"
#include "train/worker/averages.h"

namespace lockstep::train {
namespace {

/// Every rank computes these from the reduced gradients by itself. NaNs of any bits are the same NaN.
uint64_t hash_of_norm(const program::Verdict& verdict) {
  const double values[] = {verdict.finite,
                           std::isfinite(verdict.gradient_norm) ? verdict.gradient_norm : 0.0};
  return hash64(values, sizeof values);
}

}  // namespace

Trainer::Trainer(Worker& worker, comm::Communicator& world, TrainerEvents events, TrainerRunOptions options)
    : worker_(&worker),
      world_(&world),
      events_(std::move(events)),
      options_(std::move(options)),
      config_(worker.config()),
      checkpoints_(worker, {.output_directory = options_.output_directory,
                            .mailbox = options_.mailbox,
                            .progress = options_.progress,
                            .files = options_.files,
                            .before_write = events_.before_checkpoint,
                            .on_message = events_.on_message,
                            .parameters_alone = options_.evaluates,
                            .averages = options_.evaluates_average}),
      replicas_(std::in_place, worker),
      spikes_(config_.trainer.spike_threshold) {
  if (config_.precision.scales_loss()) loss_scaler_.emplace(config_.precision.loss_scaling);
}

TrainingOutcome Trainer::run() {
  while (advance()) {
  }
  return finish();
}

bool Trainer::advance() {
  const int64_t total = worker_->total_steps();
  if (!std::exchange(began_, true)) {
    step_began_ = Clock::now();
    if (options_.phases != nullptr) options_.phases->enter(observe::RunPhase::steps);
    // Of the step at which the run was stopped.
    if (pending_evaluation_ && step_ < total) evaluate_as_planned();
    if (best_is_new_) save_checkpoint();
  }
  if (step_ >= total || stop_ || finished_ || ends_early()) return false;
  hear_of_checkpoints(config_.checkpoint.on_failure);
  if (worker_->serving() != nullptr)
    train_one_session();
  else
    train_one_step();
  if (evaluation_due()) evaluate_as_planned();
  if (text_due()) write_text();
  if (checkpoint_due() || best_is_new_) save_checkpoint();
  return true;
}

void Trainer::write_text() {
  const observe::PhaseStay stay(options_.phases, observe::RunPhase::evaluation);
  try {
    const std::string text = options_.texts->write(*world_, options_.progress);
    if (world_->rank() == 0 && events_.on_text) events_.on_text(step_, text);
  } catch (const DataError& error) {
    // Of a model that has diverged. What to do about that, the training says.
    log_warning(fmt::format("step {}: no text: {}", step_, error.what()));
  }
  enter_phase(options_.progress, Phase::between_steps);
  step_began_ = Clock::now();
}

TrainingOutcome Trainer::finish() {
  finished_ = true;
  worker_->finish_step();
  const bool cut_short = stop_ && step_ < worker_->total_steps();
  // What ended the training early was an evaluation.
  const bool evaluated = ends_early() && outcome_.evaluation && outcome_.evaluation->step == step_;
  if (worker_->has_eval_data() && config_.trainer.eval_at_end && !cut_short && !evaluated)
    evaluate_as_planned();
  outcome_.evaluations = evaluations_;
  outcome_.ended_early = ends_early() && step_ < worker_->total_steps();
  outcome_.stopped = cut_short || pending_evaluation_;
  require_equal_replicas();
  if (!options_.output_directory.empty()) settle_checkpoints();
  outcome_.steps = step_;
  outcome_.skipped_steps = skipped_steps_;
  if (loss_scaler_) outcome_.loss_scale = loss_scaler_->scale();
  outcome_.epochs = worker_->length().epochs_after(step_);
  return outcome_;
}

bool Trainer::evaluation_due() const {
  const int64_t every = config_.trainer.eval_every_steps;
  return worker_->has_eval_data() && every > 0 && step_ % every == 0 && step_ < worker_->total_steps();
}

bool Trainer::checkpoint_due() const {
  const int64_t every = config_.checkpoint.every_steps;
  return every > 0 && step_ % every == 0 && step_ < worker_->total_steps();
}

run::StepInputs Trainer::inputs_of(int64_t step) const {
  run::StepInputs inputs;
  inputs.iteration = static_cast<uint64_t>(step);
  // Moments know nothing of steps that were skipped.
  inputs.constants = constants_of(step, optimizer_updates_ + 1);
  const bool last = options_.stop_after > 0 && step + 1 >= options_.stop_after;
  inputs.stop_requested = last || stop_is_wanted() ? 1 : 0;
  return inputs;
}

run::StepScalars Trainer::constants_of(int64_t step, int64_t updates) const {
  run::StepScalars constants;
  constants.kernels.step = static_cast<uint64_t>(step);
  constants.kernels.seed = config_.trainer.seed;
  constants.update.learning_rate = optim::learning_rate_at(config_.optimizer.learning_rate, config_.schedule,
                                                           step, worker_->length().schedule_span());
  if (loss_scaler_) constants.kernels.loss_scale = loss_scaler_->scale();
  constants.update.beta1_power = std::pow(config_.optimizer.beta1, static_cast<double>(updates));
  constants.update.beta2_power = std::pow(config_.optimizer.beta2, static_cast<double>(updates));
  constants.update.updates = static_cast<uint32_t>(std::min<int64_t>(updates, UINT32_MAX));
  constants.update.average_gain = optim::average_gain(config_.optimizer.average, updates);
  return constants;
}

bool Trainer::stop_is_wanted() const {
  return save_failure_ != nullptr || (options_.stop_requested && options_.stop_requested());
}

void Trainer::train_one_step() {
  run::StepInputs inputs = inputs_of(step_);
  const bool compared = comparison_is_due();
  if (compares_replicas()) inputs.state_hash = agreement_hash(compared);
  const double waited_before = worker_->data_wait_ms();
  const bool has_histograms = options_.histograms != nullptr && options_.histograms->is_due(step_ + 1);
  const bool measures_noise = options_.noise_scale != nullptr && options_.noise_scale->is_due(step_ + 1);
  if (options_.observer)
    worker_->run_observed_step(inputs, options_.observer);
  else if (has_histograms || measures_noise)
    worker_->run_observed_step(inputs, watchers(has_histograms, measures_noise));
  else
    worker_->run_step(inputs);
  enter_phase(options_.progress, Phase::between_steps);
  // A copy: what is not finite makes the step run again.
  const program::Verdict verdict = worker_->verdict();
  if (verdict.replicas_differ != 0) report_divergence();
  // To be compared in the next step.
  if (compares_replicas()) {
    read_hash_ = replicas_->see_step();
    read_step_ = step_ + 1;
  }
  if (compared) equal_step_ = step_;
  norm_hash_ = hash_of_norm(verdict);
  last_norm_ = verdict.gradient_norm;
  StepRecord record{.data_wait_ms = worker_->data_wait_ms() - waited_before};
  record.skipped = verdict.finite == 0 && config_.trainer.nonfinite != config::NonFinitePolicy::ignore;
  if (loss_scaler_) record.loss_scale = inputs.constants.kernels.loss_scale;
  if (record.skipped) {
    if (!lowered_loss_scale(verdict)) handle_nonfinite(inputs, verdict);
  } else if (loss_scaler_) {
    loss_scaler_->step_was_finite();
  }
  if (!record.skipped) ++optimizer_updates_;
  ++step_;
  if (options_.progress != nullptr) options_.progress->set_step(step_);
  if (has_histograms) {
    record.histogram_ms = options_.histograms->counting_ms();
    options_.histograms->end_step(step_, verdict, inputs.constants, record.skipped);
  }
  if (measures_noise) options_.noise_scale->end_step(step_, verdict, inputs.constants, record.skipped);
  if (verdict.has_loss()) record.spike = spikes_.add(step_, verdict.mean_loss(), verdict.gradient_norm);
  suspicious_ = record.spike.has_value();
  if (record.spike && world_->rank() == 0) log_warning(record.spike->message);
  stop_ = verdict.stop_requested > 0;
  outcome_.train_loss = verdict.has_loss() ? std::optional(verdict.mean_loss()) : std::nullopt;
  // What is left of a step counts with the next one; without a next one, with its own.
  if (stop_ || evaluation_due() || checkpoint_due() || text_due() || step_ == worker_->total_steps())
    worker_->finish_step();
  tell_step(inputs, verdict, std::move(record));
}

/// Of one step: those that look at it.
run::KernelObserver Trainer::watchers(bool has_histograms, bool measures_noise) {
  std::vector<run::KernelObserver> all;
  if (has_histograms) all.push_back(options_.histograms->observer());
  if (measures_noise)
    all.emplace_back(
        [this](const run::KernelObservation& observation) { options_.noise_scale->observe(observation); });
  return [all](const run::KernelObservation& observation) {
    for (const run::KernelObserver& each : all) each(observation);
  };
}

void Trainer::tell_step(const run::StepInputs& inputs, const program::Verdict& verdict, StepRecord record) {
  const auto complete = Clock::now();
  record.step = step_;
  record.loss = verdict.mean_loss();
  record.learning_rate = inputs.constants.update.learning_rate;
  record.gradient_norm = verdict.gradient_norm;
  record.correct = verdict.correct;
  record.count = verdict.count;
  record.step_ms = milliseconds_between(std::exchange(step_began_, complete), complete);
  record.exposed_communication_ms = worker_->step_times().exposed_communication_ms.value_or(0);
  record.busy_ms = worker_->step_times().busy_ms;
  if (events_.on_step) events_.on_step(record);
}

program::Verdict Trainer::evaluated_verdict() {
  if (!config_.evaluates_average || options_.evaluates) return worker_->evaluate(options_.stop_requested);
  AveragedParameters averages(*worker_, *world_);
  const program::Verdict verdict = worker_->evaluate(options_.stop_requested);
  averages.restore();
  return verdict;
}

bool Trainer::evaluate() {
  const observe::PhaseStay stay(options_.phases, observe::RunPhase::evaluation);
  const auto begin = Clock::now();
  // Whoever asked to stop waits for the checkpoint, not for the evaluation: that is made up for when the run
  // goes on.
  program::Verdict verdict;
  verdict.stop_requested = stop_ ? 1 : 0;
  if (!stop_) verdict = evaluated_verdict();
  stop_ = verdict.stop_requested > 0;
  enter_phase(options_.progress, Phase::between_steps);
  if (stop_) return false;
  EvaluationRecord record{.step = step_,
                          .loss = verdict.mean_loss(),
                          .accuracy = verdict.has_loss() ? verdict.correct / verdict.count : 0,
                          .count = verdict.count,
                          .milliseconds = milliseconds_between(begin, Clock::now())};
  outcome_.evaluation = record;
  if (events_.on_evaluation) events_.on_evaluation(record);
  step_began_ = Clock::now();
  if (record.has_loss() && !std::isfinite(record.loss) &&
      config_.trainer.nonfinite != config::NonFinitePolicy::ignore)
    throw comm::CollectiveError(
        fmt::format("the evaluation loss after step {} is {}: the model has diverged; lower "
                    "optimizer.learning_rate, add warm-up or set trainer.clip_norm",
                    step_, record.loss),
        ExitCode::internal);
  return true;
}

void Trainer::evaluate_as_planned() {
  pending_evaluation_ = !evaluate();
  if (pending_evaluation_ || !outcome_.evaluation->has_loss()) return;
  const bool is_best = evaluations_.add(step_, outcome_.evaluation->loss);
  best_is_new_ = is_best && keeps_best();
  // A checkpoint of this step that was saved before knows nothing of it.
  if (best_is_new_) saved_step_ = -1;
  if (ends_early() && events_.on_message)
    events_.on_message(fmt::format(
        "the training ends after step {}: {} evaluations in a row were no better than that of step {} "
        "(trainer.early_stopping)",
        step_, evaluations_.since_best, evaluations_.best_step));
}

bool Trainer::keeps_best() const {
  return config_.checkpoint.keep_best && !options_.output_directory.empty();
}

bool Trainer::ends_early() const {
  return config_.trainer.early_stopping > 0 && evaluations_.since_best >= config_.trainer.early_stopping;
}

std::optional<EvaluationRecord> Trainer::evaluate_now() {
  return evaluate() ? outcome_.evaluation : std::nullopt;
}

void Trainer::parameters_changed() {
  saved_step_ = equal_step_ = hashed_step_ = -1;
  // What was evaluated were others.
  outcome_.evaluation.reset();
  evaluations_.last_step = -1;
  // A checkpoint of this step will have these, whose loss nobody knows.
  if (evaluations_.best_step == step_) evaluations_ = {};
}

}  // namespace lockstep::train
