#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::optim {

enum class ScheduleKind { constant, cosine, step, linear, polynomial, one_cycle, stable_decay, points };

/// What a number of a schedule counts, from the beginning of the training. share: of the training, 0 at its
/// first step and 1 at its last.
enum class ScheduleUnit { steps, epochs, samples, share };

/// How a rate passes to another: by a straight line, by half a cosine, at once when the other's time has
/// come, or by equal factors.
enum class Interpolation { linear, cosine, hold, exponential };

/// stable_decay: how the rate falls.
enum class DecayShape { linear, cosine, one_minus_sqrt };

struct SchedulePoint {
  double at = 0;      ///< in the schedule's unit
  double factor = 1;  ///< of the peak
  bool operator==(const SchedulePoint&) const = default;
};

/// Learning rate over optimizer steps: a linear warm-up to learning_rate, then one of the kinds. The schema
/// of configs describes them, and checks the values.
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::constant;
  int64_t warmup_steps = 0;  ///< 0 with one_cycle and points
  double warmup_epochs = 0;  ///< above 0: in place of warmup_steps
  double warmup_from = 0;    ///< the rate at its first step; 0: learning_rate / warmup_steps
  double minimum = 0;        ///< cosine, linear, polynomial, stable_decay: learning rate at the last step
  double power = 1;          ///< polynomial
  double gamma = 0.1;        ///< step
  double every = 0;          ///< step: 0: at the milestones
  std::vector<double> milestones = {};                                ///< step: ascending
  ScheduleUnit unit = ScheduleUnit::steps;                            ///< step, points
  std::vector<SchedulePoint> points = {};                             ///< ascending; at least one
  Interpolation interpolation = Interpolation::linear;                ///< points; one_cycle: linear or cosine
  double rising_share = 0.3, first_divisor = 25, last_divisor = 1e4;  ///< one_cycle
  bool three_phase = false;                                           ///< one_cycle
  double decay_share = 0.1;                                           ///< stable_decay
  DecayShape shape = DecayShape::linear;                              ///< stable_decay
  bool operator==(const ScheduleOptions&) const = default;
};

/// The training that a schedule runs over.
struct ScheduleSpan {
  int64_t total_steps = 1;
  /// Added to numbers of steps after the warm-up, because earlier steps had larger or smaller batches and the
  /// training ends with its epochs; 0 if steps are stated.
  double shift = 0;
  double samples_per_step = 1;
  double shift_samples =
      0;  ///< samples of all steps so far, minus those that they would have had with this batch
  double epoch_samples = 1;
};

/// The learning rate of optimizer step `step`, from 0: a pure function. `peak`: optimizer.learning_rate.
/// REQUIRES: 0
/// <= step < total_steps.
double learning_rate_at(double peak, const ScheduleOptions& schedule, int64_t step, const ScheduleSpan& span);

}  // namespace lockstep::optim
