#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"

namespace lockstep::tensor {

/// Rounds to the type T with error feedback (Seide et al. 2014; Karimireddy et al. 2019): adds the residual
/// of the rounding before, and leaves that of this one. The difference of a number and what it is rounded to
/// is exact in float32. If it is not finite (NaN, infinity, and what overflows), the residual is 0, so that
/// one bad gradient does not spoil what follows.
template <class T>
LOCKSTEP_HOST_DEVICE inline T round_with_feedback(float value, float& residual) {
  const float wanted = value + residual;
  const T rounded(wanted);
  const float lost = wanted - static_cast<float>(rounded);
  constexpr uint32_t kExponent = 0x7f800000u;
  residual = (std::bit_cast<uint32_t>(lost) & kExponent) == kExponent ? 0.0f : lost;
  return rounded;
}

}  // namespace lockstep::tensor
