#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace lockstep::detail {

// The parts of Box and Muller's normals, without branches or calls, so that g++ vectorises loops over them.
// They are accurate to at least 2^-45, which is not the last bit of double precision, but sufficient for
// rounding to float.

/// The number in [0, 1) of 53 bits that philox_uniform makes of two words, exactly.
[[gnu::always_inline]] inline double unit_of_words(uint32_t high, uint32_t low) {
  // Every instruction set has vectors that convert signed numbers of 32 bits; not all have unsigned or longer
  // ones.
  const auto upper = static_cast<int32_t>(high >> 6);
  const auto lower = static_cast<int32_t>((high & 63) << 21 | low >> 11);
  return static_cast<double>(upper) * 0x1p-26 + static_cast<double>(lower) * 0x1p-53;
}

/// ln x, relative error below 2^-46. REQUIRES: x in [2^-53, 1].
[[gnu::always_inline]] inline double logarithm(double x) {
  // x = 2^exponent * mantissa, with mantissa in [sqrt(1/2), sqrt(2)).
  constexpr uint64_t kSqrtHalf = 0x3FE6A09E667F3BCD;
  const uint64_t above = std::bit_cast<uint64_t>(x) - kSqrtHalf;
  const auto exponent = static_cast<int32_t>(static_cast<int64_t>(above) >> 52);
  const double mantissa = std::bit_cast<double>((above & 0x000FFFFFFFFFFFFF) + kSqrtHalf);
  // ln m = 2 artanh s with s = (m - 1) / (m + 1), whose numerator is exact. |s| < 0.1716, so that the first
  // term of the series that is left out is below 2^-49 of the first term.
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double z = s * s;
  double p = 2.0 / 17;
  p = std::fma(p, z, 2.0 / 15);
  p = std::fma(p, z, 2.0 / 13);
  p = std::fma(p, z, 2.0 / 11);
  p = std::fma(p, z, 2.0 / 9);
  p = std::fma(p, z, 2.0 / 7);
  p = std::fma(p, z, 2.0 / 5);
  p = std::fma(p, z, 2.0 / 3);
  const double log_mantissa = std::fma(p * z, s, 2.0 * s);
  // Where the exponent is not 0, its share is at least twice the other: cancelling costs one bit at most.
  return std::fma(static_cast<double>(exponent), std::numbers::ln2, log_mantissa);
}

/// cos(2 pi x), absolute error below 2^-48. REQUIRES: x in [0, 1), a multiple of 2^-53.
[[gnu::always_inline]] inline double cosine_of_turns(double x) {
  // cos(2 pi x) = -sin(2 pi r) with r = 1/4 - |x - 1/2|, in which both differences are exact.
  const double r = 0.25 - std::fabs(x - 0.5);
  const double y = r * (2 * std::numbers::pi);
  const double z = y * y;
  // The sine's series; |y| <= pi / 2, so that the first term that is left out, y^21 / 21!, is below 2^-51.
  double p = 1.0 / 121645100408832000;         // 1 / 19!
  p = std::fma(p, z, -1.0 / 355687428096000);  // 1 / 17!
  p = std::fma(p, z, 1.0 / 1307674368000);     // 1 / 15!
  p = std::fma(p, z, -1.0 / 6227020800);       // 1 / 13!
  p = std::fma(p, z, 1.0 / 39916800);          // 1 / 11!
  p = std::fma(p, z, -1.0 / 362880);
  p = std::fma(p, z, 1.0 / 5040);
  p = std::fma(p, z, -1.0 / 120);
  p = std::fma(p, z, 1.0 / 6);
  return std::fma(p * z, y, -y);
}

}  // namespace lockstep::detail
