// Where a training begins: at drawn parameters, at a checkpoint, or at weights of others.

#include <fmt/format.h>

#include "train/faults/position.h"
#include "train/loop/trainer.h"
#include "train/worker/averages.h"
#include "train/worker/initialize.h"

namespace lockstep::train {

void Trainer::prepare() {
  const auto& graph = worker_->compiled().graph();
  for (const HeldParameter& held : worker_->held_parameters())
    worker_->window().write(held.data, held.size_bytes(), [&](void* values) {
      initialize_parameter(graph.parameter(held.parameter), config_.trainer.seed, held.part,
                           {static_cast<float*>(values), static_cast<size_t>(held.part.count())},
                           options_.drawing_threads);
    });
  // A checkpoint that has none leaves them there.
  if (config_.optimizer.average.enabled) begin_averages(*worker_);
  restore();
  if (options_.progress != nullptr) options_.progress->set_step(step_);
  outcome_.first_step = step_;
  if (step_ < worker_->total_steps()) worker_->start_reading(static_cast<uint64_t>(step_));
}

void Trainer::restore() {
  const bool may_resume = config_.checkpoint.resume != checkpoint::ResumePolicy::never,
             reads_weights = !config_.weights.from.empty();
  if (!may_resume && !reads_weights) return;
  enter_phase(options_.progress, Phase::restore);
  const bool resumed = may_resume && resume();
  if (!resumed && reads_weights) {
    checkpoints_.began_with(load_starting_weights(
        *worker_, *world_, {.progress = options_.progress, .on_message = events_.on_message}));
    if (config_.optimizer.average.enabled) begin_averages(*worker_);
  }
  enter_phase(options_.progress, Phase::prepare);
}

bool Trainer::resume() {
  std::optional<RestoredState> restored;
  if (config_.checkpoint.resume == checkpoint::ResumePolicy::path) {
    restored = checkpoints_.restore(*world_, config_.checkpoint.resume_path);
  } else if (!options_.output_directory.empty()) {
    restored = checkpoints_.restore_newest(*world_);
    // A checkpoint that lies elsewhere is none of this run's.
    if (restored) saved_step_ = restored->position.step;
  }
  // A run that began from another's checkpoint, and was lost before its own first one.
  if (!restored && !config_.checkpoint.resume_path.empty())
    restored = checkpoints_.restore(*world_, config_.checkpoint.resume_path);
  if (!restored) return false;
  step_ = restored->position.step;
  worker_->go_on_from(restored->position);
  pending_evaluation_ = restored->progress.pending_evaluation && worker_->has_eval_data();
  evaluations_ = restored->progress.evaluations;
  skipped_steps_ = restored->progress.skipped_steps;
  overflowed_steps_ = restored->progress.overflowed_steps;
  optimizer_updates_ = restored->progress.optimizer_updates;
  worker_->learn_since(restored->progress.learning_since);
  if (const auto& scaling = restored->progress.loss_scaling; loss_scaler_ && scaling.scale > 0)
    loss_scaler_->restore(scaling);
  if (events_.on_message)
    events_.on_message(options_.evaluates
                           ? fmt::format("evaluating step {} of {}", step_, restored->path)
                           : fmt::format("resumed after step {} from {}", step_, restored->path));
  if (!options_.evaluates && worker_->length().shift_samples() != 0) tell_of_other_batch();
  return true;
}

void Trainer::tell_of_other_batch() const {
  if (!events_.on_message) return;
  events_.on_message(
      fmt::format("{} steps have taken {} samples, in batches of another size than {}; the data continue "
                  "after these samples; {}",
                  step_, worker_->length().from().samples, config_.trainer.global_batch,
                  config_.trainer.steps > 0 ? "trainer.steps, warm-up and schedule go on counting steps"
                                            : "trainer.epochs and what follows the warm-up count samples"));
}

}  // namespace lockstep::train
