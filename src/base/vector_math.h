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

/// What the formulas are computed with: a float here, a register of them in base/simd.h.
struct FloatNumbers {
  using Number = float;
  using Integer = int32_t;
  using Unsigned = uint32_t;

  LOCKSTEP_HOST_DEVICE static float number(float value) { return value; }
  LOCKSTEP_HOST_DEVICE static float fma(float a, float b, float c) { return std::fma(a, b, c); }
  /// Comparisons in this order let a NaN through.
  LOCKSTEP_HOST_DEVICE static float within(float x, float low, float high) {
    return x < low ? low : (x > high ? high : x);
  }
  LOCKSTEP_HOST_DEVICE static uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }
  LOCKSTEP_HOST_DEVICE static float of_bits(uint32_t x) { return std::bit_cast<float>(x); }
  LOCKSTEP_HOST_DEVICE static int32_t to_signed(uint32_t x) { return static_cast<int32_t>(x); }
  LOCKSTEP_HOST_DEVICE static uint32_t to_unsigned(int32_t x) { return static_cast<uint32_t>(x); }
};

/// exp(x) = 2^exponent (1 + fraction), with |fraction| < 0.42. REQUIRES: |x| <= 104 or x is NaN.
template <class N>
struct ExpParts {
  typename N::Number fraction;
  typename N::Integer exponent;
};

template <class N>
LOCKSTEP_HOST_DEVICE inline ExpParts<N> exp_parts(typename N::Number x) {
  using Number = typename N::Number;
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits of the sum.
  const Number round = N::number(12582912.0f);
  const Number shifted = N::fma(x, N::number(1.44269504f), round);
  const Number n = shifted - round;
  // ln 2 in two parts, the first with so few bits that n times it is exact.
  Number r = N::fma(n, N::number(-0.693359375f), x);
  r = N::fma(n, N::number(2.12194440e-4f), r);
  // Minimax polynomial of Cephes' expf (Moshier) for (e^r - 1 - r) / r².
  Number p = N::number(1.9875691500e-4f);
  p = N::fma(p, r, N::number(1.3981999507e-3f));
  p = N::fma(p, r, N::number(8.3334519073e-3f));
  p = N::fma(p, r, N::number(4.1665795894e-2f));
  p = N::fma(p, r, N::number(1.6666665459e-1f));
  p = N::fma(p, r, N::number(5.0000001201e-1f));
  return {N::fma(p * r, r, r), N::to_signed(N::bits(shifted) - 0x4B400000u)};
}

/// 2^exponent. REQUIRES: -126 <= exponent <= 127 (otherwise any float).
template <class N>
LOCKSTEP_HOST_DEVICE inline typename N::Number power_of_two(typename N::Integer exponent) {
  return N::of_bits(N::to_unsigned(exponent + 127) << 23);
}

}  // namespace detail

template <class N>
LOCKSTEP_HOST_DEVICE inline typename N::Number fast_exp_of(typename N::Number x) {
  // Beyond the bounds the result is 0 or infinity anyway.
  const detail::ExpParts<N> parts = detail::exp_parts<N>(N::within(x, -104.0f, 89.0f));
  // In two steps, since 2^exponent itself may be beyond the range of normal floats while the result is not.
  const typename N::Integer half = parts.exponent >> 1;
  return (N::number(1.0f) + parts.fraction) * detail::power_of_two<N>(half) *
         detail::power_of_two<N>(parts.exponent - half);
}

LOCKSTEP_HOST_DEVICE inline float fast_exp(float x) { return fast_exp_of<detail::FloatNumbers>(x); }

LOCKSTEP_HOST_DEVICE inline float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

LOCKSTEP_HOST_DEVICE inline float fast_tanh(float x) {
  // tanh |x| = m / (m + 2) with m = e^(2|x|) - 1, which keeps its relative accuracy near 0. From 10 on it
  // rounds to 1.
  const float doubled = 2.0f * std::fabs(x);
  const float bounded = doubled > 20.0f ? 20.0f : doubled;
  const auto parts = detail::exp_parts<detail::FloatNumbers>(bounded);
  const float scale = detail::power_of_two<detail::FloatNumbers>(parts.exponent);
  const float m = std::fma(scale, parts.fraction, scale - 1.0f);
  return std::copysign(m / (m + 2.0f), x);
}

}  // namespace lockstep
