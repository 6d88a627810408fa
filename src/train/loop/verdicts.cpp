// What is done about a step that is not finite, or after which replicas differ.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/gather_texts.h"
#include "lockstep/error.h"
#include "train/faults/nonfinite.h"
#include "train/faults/position.h"
#include "train/loop/trainer.h"

namespace lockstep::train {

bool Trainer::comparison_is_due() const {
  // What a flipped bit does to a loss often shows before the next check is due.
  return compares_replicas() && equal_step_ != step_ &&
         (equal_step_ < 0 || suspicious_ || step_ % config_.trainer.check_every_steps == 0);
}

uint64_t Trainer::agreement_hash(bool with_replica) {
  if (!worker_->is_worker()) return 0;
  if (with_replica) hashed_step_ = step_;
  return std::max<uint64_t>(
      1, hash_combine(hash_combine(norm_hash_, read_hash_), with_replica ? replicas_->hash() : 0));
}

void Trainer::require_equal_replicas() {
  if (!compares_copies() || equal_step_ == step_) return;
  hashed_step_ = step_;
  if (!replicas_->all_equal(*world_)) report_divergence();
  equal_step_ = step_;
}

void Trainer::require_equal_norms() {
  if (!compares_replicas()) return;
  run::StepInputs again = inputs_of(step_);
  again.state_hash = agreement_hash(true);
  worker_->replay_step(again, {});
  if (worker_->verdict().replicas_differ != 0) report_divergence();
  equal_step_ = step_;
}

void Trainer::report_divergence() {
  enter_phase(options_.progress, Phase::locate);
  worker_->finish_step();
  std::string message, what = replicas_->locate_read(*world_);
  if (!what.empty()) {
    message = fmt::format("the workers have read different parameters in step {}", read_step_);
  } else {
    message = step_ == 0 ? "the replicas differ before the first step"
                         : fmt::format("the replicas differ after step {}", step_);
    if (equal_step_ >= 0 && equal_step_ < step_)
      message += fmt::format("; they were equal after step {}", equal_step_);
    what = locate_held();
  }
  const char* advice =
      saved_step_ >= 0
          ? "\nGo on from the last checkpoint, which was compared before it was written: --resume auto."
          : "\nThere is no checkpoint yet: start afresh without that host.";
  throw comm::CollectiveError(fmt::format("{}\n  {}{}", message, what, advice), ExitCode::internal);
}

std::string Trainer::locate_held() {
  // What was hashed before the update tells more, but only if all did so.
  const auto hashed = comm::gather_texts(*world_, hashed_step_ == step_ ? "1" : "0", comm::kPatience);
  if (std::any_of(hashed.begin(), hashed.end(), [](const auto& one) { return one == "0"; }))
    replicas_->hash();
  if (std::string what = replicas_->locate(*world_); !what.empty()) return what;
  const auto norms = comm::gather_texts(*world_, exact(last_norm_), comm::kPatience);
  return fmt::format(
      "their tensors are equal by now, but not the norms of the last reduced gradients: {}, by rank\nThe "
      "memory or a processor of one of their hosts is suspect.",
      join(norms, ", "));
}

bool Trainer::lowered_loss_scale(const program::Verdict& verdict) {
  // The scale is applied after the loss: it cannot have made that infinite.
  if (!loss_scaler_ || !std::isfinite(verdict.loss_sum) || !loss_scaler_->step_overflowed()) return false;
  ++skipped_steps_;
  ++overflowed_steps_;
  return true;
}

std::string Trainer::advice(const program::Verdict& verdict) const {
  if (loss_scaler_ && std::isfinite(verdict.loss_sum))
    return "Gradients overflow at the lowest scale of the loss, precision.loss_scaling.minimum: lower that, "
           "or set "
           "precision.compute: BFLOAT16.";
  return "Lower optimizer.learning_rate, add warm-up or set trainer.clip_norm; check the data near this "
         "step.";
}

void Trainer::handle_nonfinite(const run::StepInputs& inputs, const program::Verdict& verdict) {
  worker_->finish_step();
  // The damage of one rank's memory is no fault of the model's.
  require_equal_norms();
  if (config_.trainer.nonfinite == config::NonFinitePolicy::skip) return skip_step(verdict);
  enter_phase(options_.progress, Phase::locate);
  std::string message = fmt::format(
      "step {}: loss {} and gradient norm {} are not both finite{}; parameters are as before this step",
      step_ + 1, verdict.mean_loss(), verdict.gradient_norm,
      loss_scaler_ ? fmt::format(" at a loss scale of {}", loss_scaler_->scale()) : "");
  if (config_.trainer.nonfinite == config::NonFinitePolicy::locate)
    message += "\n  first: " + locate_nonfinite(*worker_, *world_, inputs);
  throw comm::CollectiveError(message + "\n" + advice(verdict), ExitCode::internal);
}

void Trainer::skip_step(const program::Verdict& verdict) {
  ++skipped_steps_;
  // Those that only lowered the scale of the loss are no sign of trouble.
  const int64_t counted = skipped_steps_ - overflowed_steps_;
  const std::string what = fmt::format("step {}: loss {} and gradient norm {} are not both finite", step_ + 1,
                                       exact(verdict.mean_loss()), exact(verdict.gradient_norm));
  if (counted >= config_.trainer.nonfinite_limit)
    throw comm::CollectiveError(
        fmt::format("{}; it is skipped step {}, and trainer.nonfinite_limit is {}\n{} "
                    "trainer.nonfinite: LOCATE names "
                    "the layer where it begins.",
                    what, counted, config_.trainer.nonfinite_limit, advice(verdict)),
        ExitCode::internal);
  // The first three, then at powers of two.
  if (world_->rank() == 0 && (counted <= 3 || std::has_single_bit(static_cast<uint64_t>(counted))))
    log_warning(fmt::format("{}; the step is skipped ({} so far)", what, counted));
}

}  // namespace lockstep::train
