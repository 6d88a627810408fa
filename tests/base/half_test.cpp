#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The nearest of the values that `Half` holds, ties to the one with an even last bit, by looking at all of
/// them.
template <class Half>
uint16_t nearest(float value, int infinity_bits) {
  uint16_t best = 0;
  double best_distance = kInfinity;
  for (int bits = 0; bits <= infinity_bits; ++bits) {
    Half candidate;
    candidate.bits = static_cast<uint16_t>(bits);
    // What infinity stands for when it is rounded to: one step beyond the largest number.
    Half before;
    before.bits = static_cast<uint16_t>(bits - 1);
    Half before_that;
    before_that.bits = static_cast<uint16_t>(bits - 2);
    const double at = bits < infinity_bits
                          ? double{static_cast<float>(candidate)}
                          : 2.0 * static_cast<float>(before) - static_cast<float>(before_that);
    const double distance = std::fabs(at - std::fabs(double{value}));
    if (distance < best_distance || (distance == best_distance && bits % 2 == 0)) {
      best = static_cast<uint16_t>(bits);
      best_distance = distance;
    }
  }
  return static_cast<uint16_t>(best | (std::signbit(value) ? 0x8000 : 0));
}

TEST(Half, EveryBfloat16SurvivesTheWayThroughFloat32) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    bfloat16 value;
    value.bits = static_cast<uint16_t>(bits);
    const float wide = static_cast<float>(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(bfloat16(wide))));
    } else {
      ASSERT_EQ(bfloat16(wide).bits, bits);
    }
  }
}

TEST(Half, EveryFloat16SurvivesTheWayThroughFloat32) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    float16 value;
    value.bits = static_cast<uint16_t>(bits);
    const float wide = static_cast<float>(value);
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(float16(wide))));
    } else {
      ASSERT_EQ(float16(wide).bits, bits);
    }
  }
}

TEST(Half, Float16HasItsValues) {
  const auto value = [](uint16_t bits) {
    float16 half;
    half.bits = bits;
    return static_cast<float>(half);
  };
  EXPECT_EQ(value(0x3c00), 1.0f);
  EXPECT_EQ(value(0xc000), -2.0f);
  EXPECT_EQ(value(0x7bff), 65504.0f);
  EXPECT_EQ(value(0x0400), 0x1p-14f);
  EXPECT_EQ(value(0x0001), 0x1p-24f);
  EXPECT_EQ(value(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(value(0x7c00), kInfinity);
}

TEST(Half, RoundsToTheNearestAndTiesToEven) {
  const float values[] = {0.0f,     -0.0f,        1.0f,         1.0009765f, 1.00048828125f,  1.00146484375f,
                          0.1f,     -3.14159f,    65504.0f,     65519.996f, 65520.0f,        1e9f,
                          0x1p-14f, 0x1.ffep-15f, 0x1.ffdp-15f, 0x1p-24f,   0x1p-25f,        0x1.8p-25f,
                          0x1p-26f, 0x1.8p-24f,   5.9e-8f,      -6.1e-5f,   1.5f * 0x1p-20f, 123.4567f};
  for (const float value : values) {
    EXPECT_EQ(float16(value).bits, nearest<float16>(value, 0x7c00)) << value;
    EXPECT_EQ(bfloat16(value).bits, nearest<bfloat16>(value, 0x7f80)) << value;
  }
  EXPECT_EQ(bfloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(bfloat16(kInfinity).bits, 0x7f80);
  EXPECT_EQ(float16(-kInfinity).bits, 0xfc00);
}

}  // namespace
}  // namespace lockstep
