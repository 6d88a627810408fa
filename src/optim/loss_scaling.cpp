#include "optim/loss_scaling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::optim {

bool is_power_of_two(double value) {
  int exponent = 0;
  return std::isfinite(value) && value > 0 && std::frexp(value, &exponent) == 0.5;
}

LossScaler::LossScaler(const LossScalingOptions& options)
    : options_(options), state_{.scale = options.initial_scale} {
  for (const auto& [field, value] :
       {std::pair("initial_scale", options.initial_scale), std::pair("minimum", options.minimum),
        std::pair("maximum", options.maximum)})
    require(is_power_of_two(value),
            fmt::format("precision.loss_scaling.{}: expected a power of two, is {}", field, value));
  require(options.minimum <= options.initial_scale,
          fmt::format("precision.loss_scaling.minimum: expected at most initial_scale, {}, is {}",
                      options.initial_scale, options.minimum));
  require(options.maximum >= options.initial_scale,
          fmt::format("precision.loss_scaling.maximum: expected at least initial_scale, {}, is {}",
                      options.initial_scale, options.maximum));
  require(options.growth_interval >= 1,
          fmt::format("precision.loss_scaling.growth_interval: expected at least 1, is {}",
                      options.growth_interval));
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
