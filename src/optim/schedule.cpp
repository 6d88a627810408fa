#include <cmath>
#include <numbers>

#include "optim/optimizer.h"

namespace lockstep::optim {

double learning_rate_at(const OptimizerOptions& optimizer, const ScheduleOptions& schedule, int64_t step,
                        int64_t total_steps, double shift) {
  const double peak = optimizer.learning_rate;
  if (step < schedule.warmup_steps)
    return peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  if (schedule.kind == ScheduleKind::constant) return peak;
  const int64_t last = total_steps - 1;
  if (last == 0) return peak;  // which is the only step
  if (step >= last) return schedule.minimum;
  const double done = static_cast<double>(step - schedule.warmup_steps) + shift,
               whole = static_cast<double>(last - schedule.warmup_steps) + shift;
  const double progress = done > 0 ? done / whole : 0;
  return schedule.minimum + (peak - schedule.minimum) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
}

}  // namespace lockstep::optim
