#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>

namespace lockstep::optim {
namespace {

/// Half a cosine, from 1 down to 0.
double falling_cosine(double progress) { return 0.5 * (1 + std::cos(std::numbers::pi * progress)); }

double interpolated(Interpolation interpolation, double from, double to, double progress) {
  switch (interpolation) {
    case Interpolation::linear:
      return from + (to - from) * progress;
    case Interpolation::cosine:
      return to + (from - to) * falling_cosine(progress);
    case Interpolation::hold:
      return progress < 1 ? from : to;
    case Interpolation::exponential:
      return from * std::pow(to / from, progress);
  }
  return to;
}

/// Samples of the steps before this one.
double samples_before(int64_t step, const ScheduleSpan& span) {
  return static_cast<double>(step) * span.samples_per_step + span.shift_samples;
}

/// Steps as they would be, had all of them had this batch.
struct Stretch {
  double first, at, last;  ///< end of the warm-up, this step, the last step

  Stretch(const ScheduleOptions& schedule, int64_t step, const ScheduleSpan& span)
      : first(schedule.warmup_epochs > 0 ? schedule.warmup_epochs * span.epoch_samples / span.samples_per_step
                                         : static_cast<double>(schedule.warmup_steps)),
        at(static_cast<double>(step) + span.shift),
        last(static_cast<double>(span.total_steps - 1) + span.shift) {}

  /// 0 until `begin`, 1 at the last step.
  double progress_from(double begin) const {
    if (at >= last) return 1;
    return at > begin ? (at - begin) / (last - begin) : 0;
  }
};

double in_unit(ScheduleUnit unit, int64_t step, const Stretch& stretch, const ScheduleSpan& span) {
  const double samples = samples_before(step, span);
  switch (unit) {
    case ScheduleUnit::steps:
      return static_cast<double>(step);
    case ScheduleUnit::epochs:
      return samples / span.epoch_samples;
    case ScheduleUnit::samples:
      return samples;
    case ScheduleUnit::share:
      return stretch.progress_from(0);
  }
  return 0;
}

/// The number of changes up to `at`, or up to the step that begins there.
double changes(const ScheduleOptions& schedule, double at) {
  constexpr double kRounding = 1e-9;  // of fractions such as 0.3 / 0.1, which is a little less than 3
  if (schedule.every > 0) return std::floor(at / schedule.every * (1 + kRounding));
  return static_cast<double>(std::ranges::upper_bound(schedule.milestones, at * (1 + kRounding)) -
                             schedule.milestones.begin());
}

double factor_at(const ScheduleOptions& schedule, double at) {
  const auto& points = schedule.points;
  const auto after = std::ranges::upper_bound(points, at, {}, &SchedulePoint::at);
  if (after == points.begin()) return points.front().factor;
  const auto before = std::prev(after);
  if (after == points.end()) return before->factor;
  return interpolated(schedule.interpolation, before->factor, after->factor,
                      (at - before->at) / (after->at - before->at));
}

/// PyTorch's OneCycleLR. Its phases end within steps; the first step after an end belongs to the next phase.
double one_cycle(double peak, const ScheduleOptions& schedule, const Stretch& stretch) {
  const double initial = peak / schedule.first_divisor, lowest = initial / schedule.last_divisor;
  const double rising = schedule.rising_share * (stretch.last + 1);
  struct Phase {
    double end, from, to;
  };
  const Phase rise{rising - 1, initial, peak}, fall{2 * rising - 2, peak, initial};
  const auto within = [&](double begin, const Phase& phase) {
    const double progress = phase.end > begin ? (stretch.at - begin) / (phase.end - begin) : 1;
    return interpolated(schedule.interpolation, phase.from, phase.to, std::min(progress, 1.0));
  };
  if (stretch.at <= rise.end) return within(0, rise);
  if (!schedule.three_phase) return within(rise.end, {stretch.last, peak, lowest});
  if (stretch.at <= fall.end) return within(rise.end, fall);
  return within(fall.end, {stretch.last, initial, lowest});
}

double remaining(DecayShape shape, double progress) {
  switch (shape) {
    case DecayShape::linear:
      return 1 - progress;
    case DecayShape::cosine:
      return falling_cosine(progress);
    case DecayShape::one_minus_sqrt:
      return 1 - std::sqrt(progress);
  }
  return 0;
}

/// The part of the way from the peak down to the minimum that is left.
double share_of_peak(const ScheduleOptions& schedule, const Stretch& stretch) {
  const double progress = stretch.progress_from(stretch.first);
  switch (schedule.kind) {
    case ScheduleKind::cosine:
      return falling_cosine(progress);
    case ScheduleKind::linear:
      return 1 - progress;
    case ScheduleKind::polynomial:
      return std::pow(1 - progress, schedule.power);
    case ScheduleKind::stable_decay:
      return remaining(
          schedule.shape,
          stretch.progress_from(std::max(stretch.first, stretch.last - schedule.decay_share * stretch.last)));
    default:
      return 1;
  }
}

/// 0 at the first step of the warm-up, 1 or more after it.
double warmup_progress(const ScheduleOptions& schedule, int64_t step, const ScheduleSpan& span) {
  if (schedule.warmup_epochs > 0)
    return samples_before(step, span) / (schedule.warmup_epochs * span.epoch_samples);
  if (step >= schedule.warmup_steps) return 1;
  return static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
}

}  // namespace

double learning_rate_at(double peak, const ScheduleOptions& schedule, int64_t step,
                        const ScheduleSpan& span) {
  if (const double progress = warmup_progress(schedule, step, span); progress < 1) {
    if (schedule.warmup_from > 0) return schedule.warmup_from + (peak - schedule.warmup_from) * progress;
    return peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  }
  const Stretch stretch(schedule, step, span);
  switch (schedule.kind) {
    case ScheduleKind::constant:
      return peak;
    case ScheduleKind::step:
      return peak * std::pow(schedule.gamma, changes(schedule, in_unit(schedule.unit, step, stretch, span)));
    case ScheduleKind::one_cycle:
      return one_cycle(peak, schedule, stretch);
    case ScheduleKind::points:
      return peak * factor_at(schedule, in_unit(schedule.unit, step, stretch, span));
    default:
      break;
  }
  if (span.total_steps == 1) return peak;  // which is the only step
  return schedule.minimum + (peak - schedule.minimum) * share_of_peak(schedule, stretch);
}

}  // namespace lockstep::optim
