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

/// The state of a scaler in a checkpoint.
struct LossScalingState {
  double scale = 0;        ///< 0: losses are not scaled
  int64_t good_steps = 0;  ///< of this interval, all without an overflow
  bool operator==(const LossScalingState&) const = default;
};

/// The factor on the loss that keeps small gradients from vanishing in float16. It is halved after a step
/// whose gradients overflowed, and doubled after `growth_interval` steps without an overflow. It is a pure
/// function of its inputs, so ranks with the same inputs have the same scale.
class LossScaler {
 public:
  /// REQUIRES: powers of two, minimum <= initial_scale <= maximum, an interval of at least 1; the schema of
  /// configs checks this.
  explicit LossScaler(const LossScalingOptions& options);

  double scale() const { return state_.scale; }
  void step_was_finite();
  /// False, without a change, if the scale is at its minimum: then the overflow has another cause.
  bool step_overflowed();

  const LossScalingState& state() const { return state_; }
  /// Continues from another scaler's state, within this one's minimum and maximum. Throws ConfigError if its
  /// scale is no power of two.
  void restore(const LossScalingState& state);

 private:
  LossScalingOptions options_;
  LossScalingState state_;
};

}  // namespace lockstep::optim
