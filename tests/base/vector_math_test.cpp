#include "base/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Largest error of `f` against `exact`, in units of the last place, over floats of every magnitude up to
/// `bound`.
template <class F, class Exact>
double largest_error(F f, Exact exact, float bound) {
  double largest = 0;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32;
       bits += 1511) {  // prime, so that all exponents' bits vary
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (!(std::fabs(x) <= bound)) continue;
    const double expected = exact(static_cast<double>(x));
    int exponent;
    std::frexp(expected, &exponent);
    const double unit = std::ldexp(1.0, std::max(exponent - 24, -149));
    largest = std::max(largest, std::fabs(f(x) - expected) / unit);
  }
  return largest;
}

TEST(FastExp, IsWithinOneAndATenthUnitsOfTheLastPlace) {
  EXPECT_LT(largest_error(
                fast_exp, [](double x) { return std::exp(x); }, 88.7f),
            1.1);
}

TEST(FastExp, IsExactWhereTheResultIs) {
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_EQ(fast_exp(-0.0f), 1.0f);
}

TEST(FastExp, OverflowsToInfinityAndUnderflowsGradually) {
  EXPECT_TRUE(std::isfinite(fast_exp(88.72283f)));
  for (const float x : {88.73f, 89.0f, 100.0f, 1e30f, kFloatInfinity})
    EXPECT_EQ(fast_exp(x), kFloatInfinity) << x;
  EXPECT_NEAR(fast_exp(-100.0f) / 0x1p-149, std::exp(-100.0) / 0x1p-149, 1);
  for (const float x : {-104.0f, -200.0f, -1e30f, -kFloatInfinity}) EXPECT_EQ(fast_exp(x), 0.0f) << x;
}

TEST(FastTanh, IsWithinThreeUnitsOfTheLastPlace) {
  EXPECT_LT(largest_error(
                fast_tanh, [](double x) { return std::tanh(x); }, 100.0f),
            3);
}

TEST(FastTanh, IsOddAndSaturates) {
  for (const float x : {1e-30f, 0.3f, 2.0f, 9.5f}) EXPECT_EQ(fast_tanh(-x), -fast_tanh(x));
  EXPECT_TRUE(std::signbit(fast_tanh(-0.0f)));
  for (const float x : {10.0f, 1e30f, kFloatInfinity}) EXPECT_EQ(fast_tanh(x), 1.0f);
}

TEST(FastSigmoid, IsWithinThreeUnitsOfTheLastPlace) {
  // Below, exp(-x) nears overflow and the result is no normal float.
  EXPECT_LT(largest_error(
                fast_sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); }, 87.0f),
            3);
}

TEST(FastSigmoid, Saturates) {
  EXPECT_EQ(fast_sigmoid(kFloatInfinity), 1.0f);
  EXPECT_EQ(fast_sigmoid(-kFloatInfinity), 0.0f);
}

TEST(VectorMath, LetsEveryNotANumberThrough) {
  for (const uint32_t bits : {0x7FC00000u, 0xFFC00000u, 0x7F800001u, 0xFFFFFFFFu}) {
    const float x = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(fast_exp(x)));
    EXPECT_TRUE(std::isnan(fast_tanh(x)));
    EXPECT_TRUE(std::isnan(fast_sigmoid(x)));
  }
  EXPECT_TRUE(std::isnan(fast_exp(kNan)));
}

}  // namespace
}  // namespace lockstep
