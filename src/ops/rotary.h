#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace lockstep::ops {

/// By what a pair of a head's elements is turned. The formula of rotary positions, for CPUs and GPUs.
struct Rotation {
  float cosine, sine;

  /// Pair `pair` of a head of `head_size` at `position`: position theta^(-2 pair / head_size). Whole turns
  /// are taken off in double precision, so that far positions are as exact as near ones.
  LOCKSTEP_HOST_DEVICE static Rotation of(int64_t position, int64_t pair, int64_t head_size,
                                          double log2_theta) {
    constexpr double kTurn = 6.283185307179586;
    const double exponent = -2.0 * static_cast<double>(pair) / static_cast<double>(head_size) * log2_theta;
    const double turns = static_cast<double>(position) * (std::exp2(exponent) / kTurn);
    const auto angle = static_cast<float>((turns - std::floor(turns + 0.5)) * kTurn);
    return {std::cos(angle), std::sin(angle)};
  }
  /// What undoes it, which backward needs.
  LOCKSTEP_HOST_DEVICE Rotation inverse() const { return {cosine, -sine}; }

  LOCKSTEP_HOST_DEVICE float first(float x, float y) const { return x * cosine - y * sine; }
  LOCKSTEP_HOST_DEVICE float second(float x, float y) const { return y * cosine + x * sine; }
};

}  // namespace lockstep::ops
