#pragma once

#include <cmath>
#include <cstdint>

namespace lockstep::optim {

/// How a learning rate follows the global batch. linear: in proportion (Goyal et al., 2017, "Accurate, Large
/// Minibatch SGD: Training ImageNet in 1 Hour", section 2.1), for SGD. square_root: with its square root
/// (Krizhevsky, 2014, "One weird trick for parallelizing convolutional neural networks", section 5; for Adam
/// Malladi et al., 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms").
enum class ScalingRule { linear, square_root };

/// A learning rate, and the global batch for which it was found.
struct BatchScaling {
  double learning_rate = 0;
  int64_t from = 1;  ///< samples
  ScalingRule rule = ScalingRule::linear;
  bool operator==(const BatchScaling&) const = default;

  /// The learning rate for a global batch of so many samples.
  double rate_for(int64_t global_batch) const {
    const double ratio = static_cast<double>(global_batch) / static_cast<double>(from);
    return learning_rate * (rule == ScalingRule::linear ? ratio : std::sqrt(ratio));
  }
};

}  // namespace lockstep::optim
