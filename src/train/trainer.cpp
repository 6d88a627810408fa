#include "train/trainer.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "train/initialize.h"
#include "train/nonfinite.h"

namespace lockstep {

Trainer::Trainer(Worker& worker, Communicator& world, TrainerEvents events, TrainerRunOptions options)
    : worker_(worker),
      world_(world),
      events_(std::move(events)),
      options_(std::move(options)),
      config_(worker.compiled().config()),
      checkpoints_(options_.output_directory, worker, events_.on_message),
      replicas_(worker),
      spikes_(config_.trainer.spike_threshold) {}

void Trainer::prepare() {
  const auto& graph = worker_.compiled().graph();
  for (size_t p = 0; p < graph.parameters.size(); ++p)
    initialize_parameter(graph.parameters[p], config_.trainer.seed, worker_.parameter_data(static_cast<int>(p)));
  if (config_.checkpoint.resume != ResumePolicy::never) resume();
  outcome_.first_step = step_;
  saved_step_ = step_ > 0 ? step_ : -1;
  if (step_ < worker_.total_steps()) worker_.start_reading(static_cast<uint64_t>(step_));
}

void Trainer::resume() {
  std::optional<RestoredState> restored;
  if (config_.checkpoint.resume == ResumePolicy::path) {
    restored = checkpoints_.restore(world_, config_.checkpoint.resume_path);
  } else if (!options_.output_directory.empty()) {
    restored = checkpoints_.restore_newest(world_);
  }
  if (!restored) return;
  step_ = restored->step;
  if (events_.on_message) events_.on_message(fmt::format("resumed after step {} from {}", step_, restored->path));
}

TrainingOutcome Trainer::run() {
  const int64_t total = worker_.total_steps();
  const auto due = [&](int64_t every) { return every > 0 && step_ % every == 0 && step_ < total; };
  step_began_ = Clock::now();
  while (step_ < total && !stop_) {
    train_one_step();
    if (worker_.has_eval_data() && due(config_.trainer.eval_every_steps)) evaluate();
    if (due(config_.checkpoint.every_steps)) save_checkpoint();
  }
  outcome_.stopped = step_ < total;
  if (worker_.has_eval_data() && config_.trainer.eval_at_end && !outcome_.stopped) evaluate();
  require_equal_replicas();
  if (config_.checkpoint.at_end || outcome_.stopped) save_checkpoint();
  outcome_.steps = step_;
  outcome_.skipped_steps = skipped_steps_;
  outcome_.epochs = static_cast<double>(step_) * static_cast<double>(config_.trainer.global_batch) /
                    static_cast<double>(worker_.train_data().size());
  return outcome_;
}

StepInputs Trainer::inputs_of(int64_t step) const {
  StepInputs inputs;
  inputs.iteration = static_cast<uint64_t>(step);
  inputs.constants.step = static_cast<uint64_t>(step);
  inputs.constants.seed = config_.trainer.seed;
  inputs.constants.learning_rate = learning_rate_at(config_.optimizer, config_.schedule, step, worker_.total_steps());
  inputs.constants.beta1_power = std::pow(config_.optimizer.beta1, static_cast<double>(step + 1));
  inputs.constants.beta2_power = std::pow(config_.optimizer.beta2, static_cast<double>(step + 1));
  inputs.stop_requested = options_.stop_requested && options_.stop_requested() ? 1 : 0;
  return inputs;
}

void Trainer::train_one_step() {
  StepInputs inputs = inputs_of(step_);
  if (comparison_is_due()) inputs.state_hash = replicas_.hash();
  const double waited_before = worker_.data_wait_ms();
  worker_.run_step(inputs);
  const Verdict& verdict = worker_.verdict();
  if (verdict.replicas_differ != 0) report_divergence();
  if (inputs.state_hash != 0) equal_step_ = step_;
  const bool skipped = verdict.finite == 0 && config_.trainer.nonfinite != NonFinitePolicy::ignore;
  if (skipped) handle_nonfinite(inputs);
  ++step_;
  auto spike = spikes_.add(step_, verdict.mean_loss(), verdict.gradient_norm);
  suspicious_ = spike.has_value();
  if (spike && world_.rank() == 0) log_warning(spike->message);
  stop_ = verdict.stop_requested > 0;
  outcome_.train_loss = verdict.mean_loss();
  const auto complete = Clock::now();
  const double step_ms = milliseconds_between(std::exchange(step_began_, complete), complete);
  if (!events_.on_step) return;
  const IterationTimes times = worker_.step_times();
  events_.on_step({.step = step_,
                   .loss = verdict.mean_loss(),
                   .learning_rate = inputs.constants.learning_rate,
                   .gradient_norm = verdict.gradient_norm,
                   .correct = verdict.correct,
                   .count = verdict.count,
                   .step_ms = step_ms,
                   .exposed_communication_ms = times.exposed_communication_ms.value_or(0),
                   .data_wait_ms = worker_.data_wait_ms() - waited_before,
                   .skipped = skipped,
                   .spike = std::move(spike)});
}

bool Trainer::comparison_is_due() const {
  // What a flipped bit does to a loss often shows before the next check is due.
  return compares_replicas() && equal_step_ != step_ &&
         (equal_step_ < 0 || suspicious_ || step_ % config_.trainer.check_every_steps == 0);
}

void Trainer::require_equal_replicas() {
  if (!compares_replicas() || equal_step_ == step_) return;
  if (!replicas_.all_equal(world_)) report_divergence();
  equal_step_ = step_;
}

void Trainer::report_divergence() {
  std::string message = step_ == 0 ? "the replicas differ before the first step" : fmt::format("the replicas differ after step {}", step_);
  if (equal_step_ >= 0) message += fmt::format("; they were equal after step {}", equal_step_);
  throw CollectiveError(fmt::format("{}\n  {}\nGo on from the last checkpoint, which was compared before it was written: --resume auto.",
                                    message, replicas_.locate(world_)),
                        ExitCode::internal);
}

void Trainer::handle_nonfinite(const StepInputs& inputs) {
  const Verdict verdict = worker_.verdict();
  // The damage of one rank's memory is no fault of the model's.
  require_equal_replicas();
  if (config_.trainer.nonfinite == NonFinitePolicy::skip) return skip_step(verdict);
  std::string message = fmt::format("step {}: loss {} and gradient norm {} are not both finite; parameters are as before this step",
                                    step_ + 1, verdict.mean_loss(), verdict.gradient_norm);
  if (config_.trainer.nonfinite == NonFinitePolicy::locate)
    message += "\n  first: " + locate_nonfinite(worker_, world_, inputs);
  throw CollectiveError(message + "\nLower optimizer.learning_rate, add warm-up or set trainer.clip_norm; check the data near this step.",
                        ExitCode::internal);
}

void Trainer::skip_step(const Verdict& verdict) {
  ++skipped_steps_;
  const std::string what = fmt::format("step {}: loss {} and gradient norm {} are not both finite", step_ + 1,
                                       exact(verdict.mean_loss()), exact(verdict.gradient_norm));
  if (skipped_steps_ >= config_.trainer.nonfinite_limit)
    throw CollectiveError(fmt::format("{}; it is skipped step {}, and trainer.nonfinite_limit is {}\nLower optimizer.learning_rate, add "
                                      "warm-up or set trainer.clip_norm; trainer.nonfinite: LOCATE names the layer where it begins.",
                                      what, skipped_steps_, config_.trainer.nonfinite_limit),
                          ExitCode::internal);
  // The first three, then at powers of two.
  if (world_.rank() == 0 && (skipped_steps_ <= 3 || std::has_single_bit(static_cast<uint64_t>(skipped_steps_))))
    log_warning(fmt::format("{}; the step is skipped ({} so far)", what, skipped_steps_));
}

void Trainer::evaluate() {
  const auto begin = Clock::now();
  const Verdict verdict = worker_.evaluate();
  EvaluationRecord record{.step = step_,
                          .loss = verdict.mean_loss(),
                          .accuracy = verdict.count > 0 ? verdict.correct / verdict.count : 0,
                          .milliseconds = milliseconds_between(begin, Clock::now())};
  outcome_.evaluation = record;
  if (events_.on_evaluation) events_.on_evaluation(record);
  step_began_ = Clock::now();
  if (!std::isfinite(record.loss) && config_.trainer.nonfinite != NonFinitePolicy::ignore)
    throw CollectiveError(fmt::format("the evaluation loss behind step {} is {}: the model has diverged; lower "
                                      "optimizer.learning_rate, add warm-up or set trainer.clip_norm", step_, record.loss),
                          ExitCode::internal);
}

void Trainer::save_checkpoint() {
  if (options_.output_directory.empty() || saved_step_ == step_) return;
  require_equal_replicas();
  const std::string path = checkpoints_.save(world_, step_);
  saved_step_ = step_;
  if (events_.on_checkpoint) events_.on_checkpoint(step_, path);
  step_began_ = Clock::now();
}

EvaluationRecord Trainer::evaluate_only() {
  evaluate();
  return *outcome_.evaluation;
}

}  // namespace lockstep
