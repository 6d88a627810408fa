#pragma once

#include <cstdint>

namespace lockstep::optim {

/// All scales are powers of two, so that scaling a loss and dividing its gradients again changes no bit of a
/// number that neither overflows nor becomes subnormal.
struct LossScalingOptions {
  double initial_scale = 65536;
  int64_t growth_interval = 2000;  ///< steps in a row without an overflow, after which the scale is doubled
  double minimum = 1;              ///< the scale is never lowered below it
  double maximum = 16777216;       ///< the scale is never doubled beyond it; 2^24, as in NVIDIA Apex
  bool operator==(const LossScalingOptions&) const = default;
};

bool is_power_of_two(double value);

/// What a checkpoint keeps of a scaler.
struct LossScalingState {
  double scale = 0;        ///< 0: losses are not scaled
  int64_t good_steps = 0;  ///< of this interval, all without an overflow
  bool operator==(const LossScalingState&) const = default;
};

/// The factor on the loss that keeps small gradients from vanishing in float16: halved after a step whose
/// gradients overflowed, doubled after `growth_interval` steps that did not. A pure function of what it is
/// told, so that ranks that are told the same have the same scale.
class LossScaler {
 public:
  /// REQUIRES: powers of two, minimum <= initial_scale <= maximum, an interval of at least 1, as the schema
  /// of configs says.
  explicit LossScaler(const LossScalingOptions& options);

  double scale() const { return state_.scale; }
  void step_was_finite();
  /// False, and the scale stays, where it is at its minimum: it is not the scale that makes gradients
  /// overflow.
  bool step_overflowed();

  const LossScalingState& state() const { return state_; }
  /// Goes on as another left off, but within this one's minimum and maximum. Throws ConfigError if its
  /// scale is no power of two.
  void restore(const LossScalingState& state);

 private:
  LossScalingOptions options_;
  LossScalingState state_;
};

}  // namespace lockstep::optim
