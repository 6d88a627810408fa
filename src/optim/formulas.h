#pragma once

#include <cmath>

#include "base/host_device.h"
#include "optim/optimizer.h"

namespace lockstep::optim {

// The updates of one element, for both the CPU loop and the CUDA kernel. Each formula is made on the host or
// on the device from the options and the step's constants. Numbers that all elements share are computed once,
// in double precision.

// A formula is called with an element and its numbers of state, of which it leaves the first kKeptSlots as
// they are.

/// beta^(updates of the parameter, with this one). `of_all`: the same of all updates of the training.
LOCKSTEP_HOST_DEVICE inline double power_of_updates(double beta, double of_all,
                                                    const UpdateArguments& arguments,
                                                    const UpdateConstants& constants) {
  if (arguments.rates.updates_before == 0) return of_all;
  // By squaring, so that processors and GPUs have the same bits.
  double power = 1, square = beta;
  for (uint32_t left = constants.updates - arguments.rates.updates_before; left > 0; left /= 2) {
    if (left % 2 == 1) power *= square;
    square *= square;
  }
  return power;
}

/// PyTorch's SGD with dampening 0: d = g + decay p; b = momentum b + d; p -= rate (nesterov ? d + momentum b
/// : b). PyTorch starts with b = d, which is the same with b = 0.
struct SgdFormula {
  static constexpr int kKeptSlots = 0;
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

/// PyTorch's Adam and AdamW, and what Muon does to all that is no matrix: m and v are running means of g and
/// g²; p -= rate / (1 - beta1^t) m / (sqrt(v / (1 - beta2^t)) + epsilon). Weight decay is added to g (Adam),
/// or shrinks p by rate * decay first (AdamW).
struct AdamFormula {
  static constexpr int kKeptSlots = 0;
  float step_size, shrink, weight_decay, gradient_scale, gain1, beta2, gain2, inverse_correction, epsilon;

  AdamFormula() = default;
  LOCKSTEP_HOST_DEVICE AdamFormula(const OptimizerOptions& options, const UpdateArguments& arguments,
                                   const UpdateConstants& constants) {
    const double decay = arguments.rates.weight_decay;
    const double rate = constants.learning_rate * arguments.rates.learning_rate_factor;
    const bool decoupled = options.kind == OptimizerKind::adamw || options.kind == OptimizerKind::muon;
    step_size = static_cast<float>(
        rate / (1 - power_of_updates(options.beta1, constants.beta1_power, arguments, constants)));
    shrink = static_cast<float>(decoupled ? 1 - rate * decay : 1);
    weight_decay = static_cast<float>(decoupled ? 0 : decay);
    gradient_scale = static_cast<float>(arguments.gradient_scale);
    gain1 = static_cast<float>(1 - options.beta1);
    beta2 = static_cast<float>(options.beta2);
    gain2 = static_cast<float>(1 - options.beta2);
    inverse_correction = static_cast<float>(
        1 / std::sqrt(1 - power_of_updates(options.beta2, constants.beta2_power, arguments, constants)));
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

/// LARS (You et al., 2017, "Large Batch Training of Convolutional Networks"; as in MLPerf's reference): v =
/// momentum v - rate ratio (g + decay p); p += v. The ratio is the parameter's (scale_of()).
struct LarsFormula {
  static constexpr int kKeptSlots = 0;
  float learning_rate, momentum, weight_decay, gradient_scale;

  LarsFormula() = default;
  LOCKSTEP_HOST_DEVICE LarsFormula(const OptimizerOptions& options, const UpdateArguments& arguments,
                                   const UpdateConstants& constants)
      : learning_rate(static_cast<float>(constants.learning_rate * arguments.rates.learning_rate_factor *
                                         arguments.scale)),
        momentum(static_cast<float>(options.momentum)),
        weight_decay(static_cast<float>(arguments.rates.weight_decay)),
        gradient_scale(static_cast<float>(arguments.gradient_scale)) {}

  LOCKSTEP_HOST_DEVICE void operator()(float& p, float g, float& velocity) const {
    const float d = std::fma(weight_decay, p, g * gradient_scale);
    const float v = std::fma(-learning_rate, d, momentum * velocity);
    velocity = v;
    p += v;
  }
};

/// The direction u of LAMB (You et al., 2020, "Large Batch Optimization for Deep Learning"; as in NVIDIA's
/// apex): m and v as Adam's; u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + epsilon) + decay p.
struct LambDirection {
  float weight_decay, gradient_scale, gain1, beta2, gain2, mean_correction, inverse_correction, epsilon;

  LambDirection() = default;
  LOCKSTEP_HOST_DEVICE LambDirection(const OptimizerOptions& options, const UpdateArguments& arguments,
                                     const UpdateConstants& constants)
      : weight_decay(static_cast<float>(arguments.rates.weight_decay)),
        gradient_scale(static_cast<float>(arguments.gradient_scale)),
        gain1(static_cast<float>(1 - options.beta1)),
        beta2(static_cast<float>(options.beta2)),
        gain2(static_cast<float>(1 - options.beta2)),
        mean_correction(static_cast<float>(
            1 / (1 - power_of_updates(options.beta1, constants.beta1_power, arguments, constants)))),
        inverse_correction(static_cast<float>(
            1 / std::sqrt(1 - power_of_updates(options.beta2, constants.beta2_power, arguments, constants)))),
        epsilon(static_cast<float>(options.epsilon)) {}

  LOCKSTEP_HOST_DEVICE float of(float p, float mean, float square) const {
    return std::fma(weight_decay, p,
                    mean_correction * mean / std::fma(std::sqrt(square), inverse_correction, epsilon));
  }

  /// Moves the state; returns the direction that follows.
  LOCKSTEP_HOST_DEVICE float propose(float p, float g, float& mean, float& square) const {
    const float d = g * gradient_scale;
    mean = std::fma(gain1, d - mean, mean);
    square = std::fma(gain2, d * d, beta2 * square);
    return of(p, mean, square);
  }
};

/// LAMB's update, once its state has moved: p -= rate ratio u. The ratio is the parameter's (scale_of()).
struct LambFormula {
  static constexpr int kKeptSlots = 2;
  LambDirection direction;
  float learning_rate;

  LambFormula() = default;
  LOCKSTEP_HOST_DEVICE LambFormula(const OptimizerOptions& options, const UpdateArguments& arguments,
                                   const UpdateConstants& constants)
      : direction(options, arguments, constants),
        learning_rate(static_cast<float>(constants.learning_rate * arguments.rates.learning_rate_factor *
                                         arguments.scale)) {}

  LOCKSTEP_HOST_DEVICE void operator()(float& p, float, const float& mean, const float& square) const {
    p = std::fma(-learning_rate, direction.of(p, mean, square), p);
  }
};

/// What Muon makes orthogonal (Keller Jordan, 2024, "Muon: An optimizer for hidden layers in neural
/// networks"): m += (1 - momentum) (g - m); u = nesterov ? g + momentum (m - g) : m. It is called with an
/// element of u, which it writes.
struct MuonDirection {
  static constexpr int kKeptSlots = 0;
  float gain, momentum, gradient_scale;
  bool nesterov;

  MuonDirection() = default;
  LOCKSTEP_HOST_DEVICE MuonDirection(const OptimizerOptions& options, const UpdateArguments& arguments,
                                     const UpdateConstants&)
      : gain(static_cast<float>(1 - options.momentum)),
        momentum(static_cast<float>(options.momentum)),
        gradient_scale(static_cast<float>(arguments.gradient_scale)),
        nesterov(options.nesterov) {}

  LOCKSTEP_HOST_DEVICE void operator()(float& u, float g, float& mean) const {
    const float d = g * gradient_scale;
    const float m = std::fma(gain, d - mean, mean);
    mean = m;
    u = nesterov ? std::fma(momentum, m - d, d) : m;
  }
};

/// By what the update of a matrix is multiplied, besides the rate.
LOCKSTEP_HOST_DEVICE inline double matrix_scale_of(MatrixScale kind, const MatrixSize& matrix) {
  const double rows = matrix.rows, columns = matrix.columns;
  if (kind == MatrixScale::match_adamw) return 0.2 * std::sqrt(rows > columns ? rows : columns);
  return rows > columns ? std::sqrt(rows / columns) : 1;
}

/// Muon's update, once u is orthogonal: p = p (1 - rate decay) - rate scale u.
struct MuonFormula {
  static constexpr int kKeptSlots = 0;
  float shrink, step;

  MuonFormula() = default;
  LOCKSTEP_HOST_DEVICE MuonFormula(const OptimizerOptions& options, const UpdateArguments& arguments,
                                   const UpdateConstants& constants) {
    const double rate = constants.learning_rate * arguments.rates.learning_rate_factor;
    shrink = static_cast<float>(1 - rate * arguments.rates.weight_decay);
    step = static_cast<float>(rate * matrix_scale_of(options.matrix_scale, arguments.rates.matrix));
  }

  LOCKSTEP_HOST_DEVICE void operator()(float& p, float u) const { p = std::fma(-step, u, p * shrink); }
};

/// Norms of a parameter, of its mean gradient and of its update before any ratio.
struct ParameterNorms {
  double gradient = 0, parameter = 0, update = 0;
};

/// By what a parameter's update is scaled if is_scaled(). lars: trust |p| / (|g| + decay |p| + epsilon).
/// lamb: |p| / |u|. Both are 1 if one of the norms is 0. With adaptive clipping it is a factor of the
/// gradient.
LOCKSTEP_HOST_DEVICE inline double scale_of(const OptimizerOptions& options, const ParameterRates& rates,
                                            const ParameterNorms& norms) {
  switch (options.kind) {
    case OptimizerKind::lars:
      if (norms.parameter == 0 || norms.gradient == 0) return 1;
      return options.trust * norms.parameter /
             (norms.gradient + rates.weight_decay * norms.parameter + options.epsilon);
    case OptimizerKind::lamb:
      if (norms.parameter == 0 || norms.update == 0) return 1;
      return norms.parameter / norms.update;
    default: {
      const double floor = options.adaptive_clip.floor;
      const double most = options.adaptive_clip.limit * (norms.parameter > floor ? norms.parameter : floor);
      return norms.gradient > most ? most / norms.gradient : 1;
    }
  }
}

/// Applies what scale_of() has returned.
LOCKSTEP_HOST_DEVICE inline void apply_scale(const OptimizerOptions& options, double scale,
                                             UpdateArguments& arguments) {
  if (options.kind == OptimizerKind::lars || options.kind == OptimizerKind::lamb)
    arguments.scale = scale;
  else
    arguments.gradient_scale *= scale;
}

/// An update, and the moving average of what it writes: average += gain (p - average), as PyTorch's lerp.
template <class Formula>
struct Averaged {
  static constexpr int kKeptSlots = Formula::kKeptSlots;
  Formula formula;
  float gain;

  Averaged() = default;
  LOCKSTEP_HOST_DEVICE Averaged(const OptimizerOptions& options, const UpdateArguments& arguments,
                                const UpdateConstants& constants)
      : formula(options, arguments, constants), gain(constants.average_gain) {}

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
  static constexpr int kKeptSlots = 0;
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
  if (options.kind == OptimizerKind::lars) return visit.template operator()<LarsFormula, 1>();
  if (options.kind == OptimizerKind::lamb) return visit.template operator()<LambFormula, 2>();
  if (options.kind != OptimizerKind::sgd) return visit.template operator()<AdamFormula, 2>();
  if (options.momentum != 0) return visit.template operator()<SgdFormula, 1>();
  return visit.template operator()<SgdFormula, 0>();
}

/// The same for follow_direction().
template <class Visitor>
auto visit_matrix_formula(const OptimizerOptions& options, const Visitor& visitor) {
  return options.average.enabled ? visitor.template operator()<Averaged<MuonFormula>, 1>()
                                 : visitor.template operator()<MuonFormula, 0>();
}

}  // namespace lockstep::optim
