#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "lockstep/ops.h"

namespace lockstep::ops {

/// How fast pairs of a head's elements turn. The formulas of rotary positions, for CPUs and GPUs.
struct RotaryFrequencies {
  static constexpr double kTurn = 6.283185307179586;
  int64_t head_size;
  double log2_theta;
  double scaling_factor, low, high, original_positions;  ///< of RotaryEmbedding; factor 0: not scaled

  /// REQUIRES: the op passed the shape rule.
  explicit RotaryFrequencies(const RotaryEmbedding& op)
      : head_size(op.head_size),
        log2_theta(std::log2(static_cast<double>(op.theta))),
        scaling_factor(static_cast<double>(op.scaling_factor)),
        low(static_cast<double>(op.low_frequency_factor)),
        high(static_cast<double>(op.high_frequency_factor)),
        original_positions(static_cast<double>(op.original_positions)) {}

  /// Turns of pair `pair` from one position to the next.
  LOCKSTEP_HOST_DEVICE double turns_by_position(int64_t pair) const {
    const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(head_size) * log2_theta;
    const double turns = std::exp2(exponent) / kTurn;
    if (scaling_factor == 0) return turns;
    const double share = (original_positions * turns - low) / (high - low);
    const double bounded = share < 0 ? 0 : share > 1 ? 1 : share;
    return (1 - bounded) * turns / scaling_factor + bounded * turns;
  }
};

/// By what a pair of a head's elements is turned.
struct Rotation {
  float cosine, sine;

  /// Pair `pair` at `position`. Whole turns are taken off in double precision, so that far positions are as
  /// exact as near ones.
  LOCKSTEP_HOST_DEVICE static Rotation of(int64_t position, int64_t pair,
                                          const RotaryFrequencies& frequencies) {
    constexpr double kTurn = RotaryFrequencies::kTurn;
    const double turns = static_cast<double>(position) * frequencies.turns_by_position(pair);
    const auto angle = static_cast<float>((turns - std::floor(turns + 0.5)) * kTurn);
    return {std::cos(angle), std::sin(angle)};
  }
  /// What undoes it, which backward needs.
  LOCKSTEP_HOST_DEVICE Rotation inverse() const { return {cosine, -sine}; }

  LOCKSTEP_HOST_DEVICE float first(float x, float y) const { return x * cosine - y * sine; }
  LOCKSTEP_HOST_DEVICE float second(float x, float y) const { return y * cosine + x * sine; }
};

}  // namespace lockstep::ops
