#pragma once

#include <cmath>

#include "base/host_device.h"
#include "optim/optimizer.h"

namespace lockstep::optim {

// The updates of one element, for both the CPU loop and the CUDA kernel. Each formula is made on the host or
// on the device from the options and the step's constants. Numbers that all elements share are computed once,
// in double precision.

/// PyTorch's SGD with dampening 0: d = g + decay p; b = momentum b + d; p -= rate (nesterov ? d + momentum b
/// : b). PyTorch starts with b = d, which is the same with b = 0.
struct SgdFormula {
  float learning_rate, momentum, weight_decay, gradient_scale;
  bool nesterov;

  SgdFormula() = default;
  LOCKSTEP_HOST_DEVICE SgdFormula(const OptimizerOptions& options, const UpdateArguments& arguments,
                                  const UpdateConstants& constants)
      : learning_rate(static_cast<float>(constants.learning_rate * arguments.rates.learning_rate_factor)),
        momentum(static_cast<float>(options.momentum)),
        weight_decay(static_cast<float>(arguments.rates.weight_decay)),
        gradient_scale(static_cast<float>(arguments.gradient_scale)),
        nesterov(options.nesterov) {}

  LOCKSTEP_HOST_DEVICE float decayed(float p, float g) const {
    return std::fma(weight_decay, p, g * gradient_scale);
  }

  LOCKSTEP_HOST_DEVICE void operator()(float& p, float g) const {
    p = std::fma(-learning_rate, decayed(p, g), p);
  }

  LOCKSTEP_HOST_DEVICE void operator()(float& p, float g, float& buffer) const {
    const float d = decayed(p, g);
    const float b = std::fma(momentum, buffer, d);
    buffer = b;
    p = std::fma(-learning_rate, nesterov ? std::fma(momentum, b, d) : b, p);
  }
};

/// PyTorch's Adam and AdamW: m and v are running means of g and g²; p -= rate / (1 - beta1^t) m / (sqrt(v /
/// (1 - beta2^t)) + epsilon). Weight decay is added to g (Adam), or shrinks p by rate * decay first (AdamW).
struct AdamFormula {
  float step_size, shrink, weight_decay, gradient_scale, gain1, beta2, gain2, inverse_correction, epsilon;

  AdamFormula() = default;
  LOCKSTEP_HOST_DEVICE AdamFormula(const OptimizerOptions& options, const UpdateArguments& arguments,
                                   const UpdateConstants& constants) {
    const double decay = arguments.rates.weight_decay;
    const double rate = constants.learning_rate * arguments.rates.learning_rate_factor;
    const bool decoupled = options.kind == OptimizerKind::adamw;
    step_size = static_cast<float>(rate / (1 - constants.beta1_power));
    shrink = static_cast<float>(decoupled ? 1 - rate * decay : 1);
    weight_decay = static_cast<float>(decoupled ? 0 : decay);
    gradient_scale = static_cast<float>(arguments.gradient_scale);
    gain1 = static_cast<float>(1 - options.beta1);
    beta2 = static_cast<float>(options.beta2);
    gain2 = static_cast<float>(1 - options.beta2);
    inverse_correction = static_cast<float>(1 / std::sqrt(1 - constants.beta2_power));
    epsilon = static_cast<float>(options.epsilon);
  }

  LOCKSTEP_HOST_DEVICE void operator()(float& p, float g, float& mean, float& square) const {
    const float shrunk = p * shrink;
    const float d = std::fma(weight_decay, shrunk, g * gradient_scale);
    const float m = std::fma(gain1, d - mean, mean);
    const float v = std::fma(gain2, d * d, beta2 * square);
    mean = m;
    square = v;
    p = shrunk - step_size * m / std::fma(std::sqrt(v), inverse_correction, epsilon);
  }
};

/// An update, and the moving average of what it writes: average += gain (p - average), as PyTorch's lerp.
template <class Formula>
struct Averaged {
  Formula formula;
  float gain;

  Averaged() = default;
  LOCKSTEP_HOST_DEVICE Averaged(const OptimizerOptions& options, const UpdateArguments& arguments,
                                const UpdateConstants& constants)
      : formula(options, arguments, constants), gain(static_cast<float>(constants.average_gain)) {}

  LOCKSTEP_HOST_DEVICE void follow(float p, float& average) const {
    average = gain == 1.0f ? p : std::fma(gain, p - average, average);
  }

  LOCKSTEP_HOST_DEVICE void operator()(float& p, float g, float& average) const {
    formula(p, g);
    follow(p, average);
  }

  LOCKSTEP_HOST_DEVICE void operator()(float& p, float g, float& first, float& average) const {
    formula(p, g, first);
    follow(p, average);
  }

  LOCKSTEP_HOST_DEVICE void operator()(float& p, float g, float& first, float& second, float& average) const {
    formula(p, g, first, second);
    follow(p, average);
  }
};

struct StatisticFormula {
  float momentum, gradient_scale;
  LOCKSTEP_HOST_DEVICE void operator()(float& value, float mean) const {
    value = std::fma(momentum, mean * gradient_scale - value, value);
  }
};

/// The table of formulas: returns visitor.operator()<Formula, slots>() for the optimizer of `options`. Its
/// formula is called with an element and `slots` numbers of state. A new optimizer adds a line here.
template <class Visitor>
auto visit_formula(const OptimizerOptions& options, const Visitor& visitor) {
  const auto visit = [&]<class Formula, int slots> {
    return options.average.enabled ? visitor.template operator()<Averaged<Formula>, slots + 1>()
                                   : visitor.template operator()<Formula, slots>();
  };
  if (options.kind != OptimizerKind::sgd) return visit.template operator()<AdamFormula, 2>();
  if (options.momentum != 0) return visit.template operator()<SgdFormula, 1>();
  return visit.template operator()<SgdFormula, 0>();
}

}  // namespace lockstep::optim
