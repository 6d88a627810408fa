// When checkpoints begin, and what becomes of them.

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "comm/gather_texts.h"
#include "lockstep/error.h"
#include "train/loop/trainer.h"

namespace lockstep::train {

void Trainer::save_checkpoint() {
  if (options_.output_directory.empty() || saved_step_ == step_) return;
  const observe::PhaseStay stay(options_.phases, observe::RunPhase::checkpoints);
  require_equal_replicas();
  // Of a save of this same step, too: what becomes of that says nothing about this one.
  checkpoints_.settle();
  hear_of_checkpoints(config_.checkpoint.on_failure);
  checkpoints_.save(*world_, step_,
                    {.pending_evaluation = pending_evaluation_,
                     .skipped_steps = skipped_steps_,
                     .overflowed_steps = overflowed_steps_,
                     .optimizer_updates = optimizer_updates_,
                     .learning_since = worker_->learning_since(),
                     .loss_scaling = loss_scaler_ ? loss_scaler_->state() : optim::LossScalingState{},
                     .evaluations = evaluations_});
  saved_step_ = step_;
  best_is_new_ = false;
  step_began_ = Clock::now();
}

void Trainer::hear_of_checkpoints(checkpoint::SaveFailurePolicy on_failure) {
  while (const auto outcome = checkpoints_.poll()) {
    const bool saved = !outcome->path.empty();
    if (saved && events_.on_checkpoint) events_.on_checkpoint(outcome->step, outcome->path);
    if (!saved && saved_step_ == outcome->step) saved_step_ = -1;
    if (outcome->error.empty()) continue;
    const std::string message =
        saved ? outcome->error
              : fmt::format("the checkpoint of step {} is not written: {}", outcome->step, outcome->error);
    if (!saved && on_failure == checkpoint::SaveFailurePolicy::stop) {
      save_failure_ = std::make_exception_ptr(Error(message, outcome->code));
    } else if (world_->rank() == 0) {
      log_warning(message);
    }
  }
}

void Trainer::agree_on_saved_step() {
  const auto saved =
      comm::gather_texts(*world_, std::to_string(saved_step_), config_.watchdog.storage_deadline);
  if (std::ranges::any_of(saved, [&](const auto& step) { return step != saved[0]; })) saved_step_ = -1;
}

void Trainer::settle_checkpoints() {
  const observe::PhaseStay stay(options_.phases, observe::RunPhase::checkpoints);
  checkpoints_.settle();
  hear_of_checkpoints(config_.checkpoint.on_failure);
  // The best one may have been begun and not written. How that went is asked below, on all ranks alike.
  const bool best_is_here = keeps_best() && evaluations_.best_step == step_;
  if (config_.checkpoint.at_end || outcome_.stopped || best_is_new_ || best_is_here) {
    agree_on_saved_step();
    save_checkpoint();
    checkpoints_.settle();
    hear_of_checkpoints(checkpoint::SaveFailurePolicy::stop);
  }
  comm::agree_on_outcome(*world_, save_failure_, config_.watchdog.storage_deadline);
}

void Trainer::abandon() noexcept {
  try {
    checkpoints_.settle();
    hear_of_checkpoints(checkpoint::SaveFailurePolicy::go_on);
    if (save_failure_ && !finished_ && world_->rank() == 0) std::rethrow_exception(save_failure_);
  } catch (const std::exception& error) {
    log_warning(error.what());
  }
}

void Trainer::save_now() {
  if (options_.output_directory.empty()) return;
  agree_on_saved_step();
  save_checkpoint();
  hear_of_checkpoints(config_.checkpoint.on_failure);
}

}  // namespace lockstep::train
