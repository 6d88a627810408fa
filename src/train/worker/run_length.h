#pragma once

#include <cstdint>

#include "config/run_config.h"

namespace lockstep::train {

/// The progress of a training: optimizer steps, and the samples that they took.
struct RunPosition {
  int64_t step = 0, samples = 0;
  bool operator==(const RunPosition&) const = default;
};

/// The steps of a training, and where each begins in the stream of samples. Steps before `from` may have had
/// a different batch.
class RunLength {
 public:
  /// REQUIRES: train_samples > 0.
  RunLength(const config::TrainerOptions& trainer, int64_t train_samples, RunPosition from = {});

  RunPosition from() const { return from_; }
  /// As stated or, with epochs, the steps until their samples are taken: ceil(epochs * samples /
  /// global_batch) if all steps have the same batch.
  int64_t total_steps() const { return total_steps_; }
  /// REQUIRES: step >= from().step.
  int64_t samples_after(int64_t step) const { return step * global_batch_ + shift_samples(); }
  double epochs_after(int64_t step) const;
  /// The samples of all steps so far, minus those that they would have had with this batch.
  int64_t shift_samples() const { return from_.samples - from_.step * global_batch_; }
  /// What the schedule of the learning rate runs over: steps as stated, or the samples of the epochs.
  optim::ScheduleSpan schedule_span() const;

 private:
  int64_t steps_of_epochs(double epochs) const;

  RunPosition from_;
  int64_t train_samples_, global_batch_, total_steps_;
  bool counts_epochs_;
};

}  // namespace lockstep::train
