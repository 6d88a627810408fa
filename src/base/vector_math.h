#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"

namespace lockstep {

// exp, tanh and the logistic function for float32, without branches or calls, so that g++ vectorises loops
// over them and that a CPU and a GPU compute the same bits. Errors, measured against double precision over
// all magnitudes: exp below 1.1 ulp, tanh and sigmoid below 3. NaN gives NaN; exp overflows to infinity and
// underflows gradually; sigmoid is 0 below -88.8, where the true value is not a normal float.

namespace detail {

/// exp(x) = 2^exponent (1 + fraction), with |fraction| < 0.42. REQUIRES: |x| <= 104 or x is NaN.
struct ExpParts {
  float fraction;
  int32_t exponent;
};

LOCKSTEP_HOST_DEVICE inline ExpParts exp_parts(float x) {
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits of the sum.
  constexpr float kRound = 12582912.0f;
  const float shifted = std::fma(x, 1.44269504f, kRound);
  const float n = shifted - kRound;
  // ln 2 in two parts, the first with so few bits that n times it is exact.
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  // Minimax polynomial of Cephes' expf (Moshier) for (e^r - 1 - r) / r².
  float p = 1.9875691500e-4f;
  p = std::fma(p, r, 1.3981999507e-3f);
  p = std::fma(p, r, 8.3334519073e-3f);
  p = std::fma(p, r, 4.1665795894e-2f);
  p = std::fma(p, r, 1.6666665459e-1f);
  p = std::fma(p, r, 5.0000001201e-1f);
  return {std::fma(p * r, r, r), static_cast<int32_t>(std::bit_cast<uint32_t>(shifted) - 0x4B400000u)};
}

/// 2^exponent. REQUIRES: -126 <= exponent <= 127 (otherwise any float).
LOCKSTEP_HOST_DEVICE inline float power_of_two(int32_t exponent) {
  return std::bit_cast<float>(static_cast<uint32_t>(exponent + 127) << 23);
}

}  // namespace detail

LOCKSTEP_HOST_DEVICE inline float fast_exp(float x) {
  // Comparisons in this order let a NaN through. Beyond the bounds the result is 0 or infinity anyway.
  const float bounded = x < -104.0f ? -104.0f : (x > 89.0f ? 89.0f : x);
  const detail::ExpParts parts = detail::exp_parts(bounded);
  // In two steps, since 2^exponent itself may be beyond the range of normal floats while the result is not.
  const int32_t half = parts.exponent >> 1;
  return (1.0f + parts.fraction) * detail::power_of_two(half) * detail::power_of_two(parts.exponent - half);
}

LOCKSTEP_HOST_DEVICE inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

LOCKSTEP_HOST_DEVICE inline float fast_tanh(float x) {
  // tanh |x| = m / (m + 2) with m = e^(2|x|) - 1, which keeps its relative accuracy near 0. From 10 on it
  // rounds to 1.
  const float doubled = 2.0f * std::fabs(x);
  const float bounded = doubled > 20.0f ? 20.0f : doubled;
  const detail::ExpParts parts = detail::exp_parts(bounded);
  const float scale = detail::power_of_two(parts.exponent);
  const float m = std::fma(scale, parts.fraction, scale - 1.0f);
  return std::copysign(m / (m + 2.0f), x);
}

}  // namespace lockstep
