#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "lockstep/ops.h"

namespace lockstep::ops {

// What softmax_cross_entropy compares predictions with, for CPU and GPU kernels.

/// How much of a label each class gets in the loss.
struct TargetWeights {
  float first, second;  ///< of the two classes
  float other;          ///< of every other class
};

/// The label of one position: a class, or a mixture of two.
struct SoftTarget {
  int32_t first = 0, second = 0;  ///< equal if the label is one class
  float second_share = 0;         ///< in (0, 1) if they are not
  bool has_share = true;          ///< false: the share that was stated is none

  /// `mixture`: of this position, a class and its share; null if there are none.
  LOCKSTEP_HOST_DEVICE SoftTarget(int32_t label, const int32_t* mixture) : first(label), second(label) {
    if (mixture == nullptr) return;
    const int32_t other = mixture[0], share = mixture[1];
    has_share = share >= 0 && share <= kWholeShare;
    if (share == kWholeShare) {
      first = second = other;
    } else if (has_share && share != 0 && other != label) {
      second = other;
      second_share = static_cast<float>(share) * 0x1p-24f;
    }
  }

  LOCKSTEP_HOST_DEVICE bool counts(int64_t ignore_index) const {
    return first >= 0 && second >= 0 && first != ignore_index && second != ignore_index;
  }
  /// REQUIRES: counts().
  LOCKSTEP_HOST_DEVICE bool is_among(int64_t classes) const {
    return has_share && first < classes && second < classes;
  }
  /// The class that is the right answer.
  LOCKSTEP_HOST_DEVICE int32_t main() const { return second_share > 0.5f ? second : first; }

  /// The gradient of the loss with respect to a logit is its probability minus the class's weight.
  LOCKSTEP_HOST_DEVICE TargetWeights weights(float smoothing, int64_t classes) const {
    const float other = smoothing / static_cast<float>(classes), stated = 1.0f - smoothing;
    return {stated * (1.0f - second_share) + other, stated * second_share + other, other};
  }

  /// The sum of logits by their weights: the loss is the logits' log-sum-exp minus it. `sum`: of all logits;
  /// read only with smoothing.
  LOCKSTEP_HOST_DEVICE double weighted_logit(double of_first, double of_second, double sum, float smoothing,
                                             int64_t classes) const {
    const double share = second_share;
    const double stated = first == second ? of_first : (1 - share) * of_first + share * of_second;
    if (smoothing == 0) return stated;
    const double spread = smoothing;
    return (1 - spread) * stated + spread * (sum / static_cast<double>(classes));
  }
};

}  // namespace lockstep::ops
