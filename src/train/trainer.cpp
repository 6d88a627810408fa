#include "train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "train/initialize.h"
#include "train/nonfinite.h"
#include "train/position.h"

namespace lockstep {

Trainer::Trainer(Worker& worker, Communicator& world, TrainerEvents events, TrainerRunOptions options)
    : worker_(worker),
      world_(world),
      events_(std::move(events)),
      options_(std::move(options)),
      config_(worker.compiled().config()),
      checkpoints_(worker, {.output_directory = options_.output_directory,
                            .mailbox = options_.mailbox,
                            .progress = options_.progress,
                            .files = options_.files,
                            .before_write = events_.before_checkpoint,
                            .on_message = events_.on_message}),
      replicas_(worker),
      spikes_(config_.trainer.spike_threshold) {}

void Trainer::prepare() {
  const auto& graph = worker_.compiled().graph();
  for (size_t p = 0; p < graph.parameters.size(); ++p)
    initialize_parameter(graph.parameters[p], config_.trainer.seed, worker_.parameter_data(static_cast<int>(p)));
  if (config_.checkpoint.resume != ResumePolicy::never) {
    enter_phase(options_.progress, Phase::restore);
    resume();
    if (options_.progress != nullptr) options_.progress->set_step(step_);
  }
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
  pending_evaluation_ = restored->progress.pending_evaluation;
  skipped_steps_ = restored->progress.skipped_steps;
  if (events_.on_message) events_.on_message(fmt::format("resumed after step {} from {}", step_, restored->path));
}

TrainingOutcome Trainer::run() {
  const int64_t total = worker_.total_steps();
  step_began_ = Clock::now();
  // Of the step at which the run was stopped.
  if (pending_evaluation_ && step_ < total) evaluate();
  while (step_ < total && !stop_) {
    hear_of_checkpoints(config_.checkpoint.on_failure);
    train_one_step();
    if (evaluation_due()) evaluate();
    if (config_.checkpoint.every_steps > 0 && step_ % config_.checkpoint.every_steps == 0 && step_ < total) save_checkpoint();
  }
  if (worker_.has_eval_data() && config_.trainer.eval_at_end && step_ == total) evaluate();
  outcome_.stopped = step_ < total || pending_evaluation_;
  require_equal_replicas();
  if (!options_.output_directory.empty()) settle_checkpoints();
  outcome_.steps = step_;
  outcome_.skipped_steps = skipped_steps_;
  outcome_.epochs = static_cast<double>(step_) * static_cast<double>(config_.trainer.global_batch) /
                    static_cast<double>(worker_.train_data().size());
  return outcome_;
}

bool Trainer::evaluation_due() const {
  const int64_t every = config_.trainer.eval_every_steps;
  return worker_.has_eval_data() && every > 0 && step_ % every == 0 && step_ < worker_.total_steps();
}

StepInputs Trainer::inputs_of(int64_t step) const {
  StepInputs inputs;
  inputs.iteration = static_cast<uint64_t>(step);
  inputs.constants.step = static_cast<uint64_t>(step);
  inputs.constants.seed = config_.trainer.seed;
  inputs.constants.learning_rate = learning_rate_at(config_.optimizer, config_.schedule, step, worker_.total_steps());
  inputs.constants.beta1_power = std::pow(config_.optimizer.beta1, static_cast<double>(step + 1));
  inputs.constants.beta2_power = std::pow(config_.optimizer.beta2, static_cast<double>(step + 1));
  inputs.stop_requested = save_failure_ != nullptr || (options_.stop_requested && options_.stop_requested()) ? 1 : 0;
  return inputs;
}

void Trainer::train_one_step() {
  StepInputs inputs = inputs_of(step_);
  if (comparison_is_due()) inputs.state_hash = replicas_.hash();
  const double waited_before = worker_.data_wait_ms();
  worker_.run_step(inputs);
  enter_phase(options_.progress, Phase::between_steps);
  const Verdict& verdict = worker_.verdict();
  if (verdict.replicas_differ != 0) report_divergence();
  if (inputs.state_hash != 0) equal_step_ = step_;
  const bool skipped = verdict.finite == 0 && config_.trainer.nonfinite != NonFinitePolicy::ignore;
  if (skipped) handle_nonfinite(inputs);
  ++step_;
  if (options_.progress != nullptr) options_.progress->set_step(step_);
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
  // Whoever asked to stop waits for the checkpoint, not for the evaluation: that is made up for when the run goes on.
  const bool again = step_ == outcome_.first_step && step_ > 0 && !pending_evaluation_;
  Verdict verdict;
  verdict.stop_requested = stop_ ? 1 : 0;
  if (!stop_) verdict = worker_.evaluate(options_.stop_requested);
  pending_evaluation_ = verdict.stop_requested > 0;
  stop_ = pending_evaluation_;
  enter_phase(options_.progress, Phase::between_steps);
  if (pending_evaluation_) return;
  EvaluationRecord record{.step = step_,
                          .loss = verdict.mean_loss(),
                          .accuracy = verdict.count > 0 ? verdict.correct / verdict.count : 0,
                          .milliseconds = milliseconds_between(begin, Clock::now()),
                          .again = again};
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
  checkpoints_.save(world_, step_, {.pending_evaluation = pending_evaluation_, .skipped_steps = skipped_steps_});
  saved_step_ = step_;
  step_began_ = Clock::now();
}

void Trainer::hear_of_checkpoints(SaveFailurePolicy on_failure) {
  while (const auto outcome = checkpoints_.poll()) {
    const bool saved = !outcome->path.empty();
    if (saved && events_.on_checkpoint) events_.on_checkpoint(outcome->step, outcome->path);
    if (!saved && saved_step_ == outcome->step) saved_step_ = -1;
    if (outcome->error.empty()) continue;
    const std::string message = saved ? outcome->error
                                      : fmt::format("the checkpoint of step {} is not written: {}", outcome->step, outcome->error);
    if (!saved && on_failure == SaveFailurePolicy::stop) {
      save_failure_ = std::make_exception_ptr(Error(message, outcome->code));
    } else if (world_.rank() == 0) {
      log_warning(message);
    }
  }
}

void Trainer::settle_checkpoints() {
  checkpoints_.settle();
  hear_of_checkpoints(config_.checkpoint.on_failure);
  const auto patience = config_.watchdog.storage_deadline;
  if (config_.checkpoint.at_end || outcome_.stopped) {
    // What one rank takes for saved, another may have given up waiting for.
    const auto saved = gather_texts(world_, std::to_string(saved_step_), patience);
    if (std::any_of(saved.begin(), saved.end(), [&](const auto& step) { return step != saved[0]; })) saved_step_ = -1;
    save_checkpoint();
    checkpoints_.settle();
    hear_of_checkpoints(SaveFailurePolicy::stop);
  }
  agree_on_outcome(world_, save_failure_, patience);
}

std::optional<EvaluationRecord> Trainer::evaluate_only() {
  evaluate();
  return pending_evaluation_ ? std::nullopt : outcome_.evaluation;
}

}  // namespace lockstep
