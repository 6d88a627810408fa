#include "optim/loss_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/ensure.h"
#include "lockstep/error.h"

namespace lockstep::optim {

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::isfinite(value) && value > 0 && std::frexp(value, &exponent) == 0.5;
}

LossScaler::LossScaler(const LossScalingOptions& options)
    : options_(options), state_{.scale = options.initial_scale} {
  ensure(is_power_of_two(options.initial_scale) && is_power_of_two(options.minimum) &&
             is_power_of_two(options.maximum) && options.minimum <= options.initial_scale &&
             options.initial_scale <= options.maximum && options.growth_interval >= 1,
         "a loss scaler was made from options that make no sense");
}

void LossScaler::step_was_finite() {
  if (++state_.good_steps < options_.growth_interval) return;
  state_.scale = std::min(2 * state_.scale, options_.maximum);
  state_.good_steps = 0;
}

bool LossScaler::step_overflowed() {
  state_.good_steps = 0;
  if (state_.scale <= options_.minimum) return false;
  state_.scale /= 2;
  return true;
}

void LossScaler::restore(const LossScalingState& state) {
  require(is_power_of_two(state.scale),
          fmt::format("expected a loss scale that is a power of two, found {}", state.scale));
  state_ = state;
  state_.scale = std::clamp(state_.scale, options_.minimum, options_.maximum);
}

}  // namespace lockstep::optim
