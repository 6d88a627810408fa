#include "train/worker/run_length.h"

#include <algorithm>
#include <cmath>

namespace lockstep::train {

RunLength::RunLength(const config::TrainerOptions& trainer, int64_t train_samples, RunPosition from)
    : from_(from),
      train_samples_(train_samples),
      global_batch_(trainer.global_batch),
      counts_epochs_(trainer.steps == 0) {
  total_steps_ = counts_epochs_ ? steps_of_epochs(trainer.epochs) : trainer.steps;
}

int64_t RunLength::steps_of_epochs(double epochs) const {
  const double samples = epochs * static_cast<double>(train_samples_);
  const double steps = (samples - static_cast<double>(shift_samples())) / static_cast<double>(global_batch_);
  // Epochs such as 8.3 are not exact: a product that misses a whole number by rounding alone is that number.
  const double whole = std::round(steps);
  const double counted = std::abs(steps - whole) <= 1e-9 * whole ? whole : std::ceil(steps);
  return std::max(int64_t{1}, static_cast<int64_t>(counted));
}

double RunLength::epochs_after(int64_t step) const {
  return static_cast<double>(samples_after(step)) / static_cast<double>(train_samples_);
}

optim::ScheduleSpan RunLength::schedule_span() const {
  const auto shift = static_cast<double>(shift_samples()), batch = static_cast<double>(global_batch_);
  return {.total_steps = total_steps_,
          .shift = counts_epochs_ ? shift / batch : 0,
          .samples_per_step = batch,
          .shift_samples = shift,
          .epoch_samples = static_cast<double>(train_samples_)};
}

}  // namespace lockstep::train
