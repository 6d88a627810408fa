#include "tensor/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/half.h"
#include "lockstep/error.h"

namespace lockstep::tensor {
namespace {

std::vector<uint16_t> narrowed(const std::vector<float>& values, DType type) {
  std::vector<uint16_t> bits(values.size());
  convert(bits.data(), type, values.data(), DType::float32, static_cast<int64_t>(values.size()));
  return bits;
}

std::vector<float> widened(const std::vector<uint16_t>& bits, DType type) {
  std::vector<float> values(bits.size());
  convert(values.data(), DType::float32, bits.data(), type, static_cast<int64_t>(bits.size()));
  return values;
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Convert, NarrowsToNearestEven) {
  // 1 + 2^-8 lies halfway between bfloat16 numbers, 1 + 2^-11 between float16 numbers: to even.
  EXPECT_EQ(narrowed({1, 1 + 0x1p-8f, 1 + 3 * 0x1p-8f, -2.5f, kInfinity}, DType::bfloat16),
            (std::vector<uint16_t>{0x3f80, 0x3f80, 0x3f82, 0xc020, 0x7f80}));
  EXPECT_EQ(narrowed({1, 1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 65504, 65520, 0x1p-24f, -0.0f}, DType::float16),
            (std::vector<uint16_t>{0x3c00, 0x3c00, 0x3c02, 0x7bff, 0x7c00, 0x0001, 0x8000}));
}

TEST(Convert, RoundsToNearestEvenAtTheEndsOfTheRangeToo) {
  // Halfway to the smallest subnormal number, just beyond that, halfway from the first to the second, and
  // from the largest to the smallest normal number; the last number before infinity.
  EXPECT_EQ(narrowed({0x1p-25f, 0x1.000002p-25f, -0x1.8p-24f, 1023.5f * 0x1p-24f, 65519.996f, -1e30f},
                     DType::float16),
            (std::vector<uint16_t>{0, 1, 0x8002, 0x0400, 0x7bff, 0xfc00}));
  EXPECT_EQ(narrowed({0x1p-134f, 0x1.02p-134f, -0x1.8p-133f, 0x1.fep127f, 0x1.fefffep127f, -0x1.ffp127f},
                     DType::bfloat16),
            (std::vector<uint16_t>{0, 1, 0x8002, 0x7f7f, 0x7f7f, 0xff80}));
}

TEST(Convert, WidensExactly) {
  EXPECT_EQ(widened({0x3f80, 0x4049, 0xff80}, DType::bfloat16),
            (std::vector<float>{1, 3.140625f, -kInfinity}));
  EXPECT_EQ(widened({0x3c00, 0x0001, 0x7bff, 0xfc00}, DType::float16),
            (std::vector<float>{1, 0x1p-24f, 65504, -kInfinity}));
}

/// Loops are vectorised, with a scalar rest; each element must be what half.h makes of it by itself.
template <class Half>
void expect_elements_of(DType type) {
  std::vector<float> values;
  for (uint32_t word = 0; word < 0xffff0000u; word += 0x1ffef) values.push_back(std::bit_cast<float>(word));
  const auto bits = narrowed(values, type);
  const auto again = widened(bits, type);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(bits[i], Half(values[i]).bits) << values[i];
    Half half;
    half.bits = bits[i];
    ASSERT_EQ(std::bit_cast<uint32_t>(again[i]), std::bit_cast<uint32_t>(static_cast<float>(half)))
        << values[i];
  }
}

TEST(Convert, EveryElementIsConvertedAsAlone) {
  expect_elements_of<bfloat16>(DType::bfloat16);
  expect_elements_of<float16>(DType::float16);
}

TEST(Convert, KeepsNaNAndLeavesTheRestOfMemoryAlone) {
  for (const DType type : {DType::bfloat16, DType::float16})
    for (int64_t count = 0; count < 70; ++count) {
      std::vector<float> values(70, std::nanf("")), back(70, -1);
      std::vector<uint16_t> bits(70, 0x1234);
      convert(bits.data(), type, values.data(), DType::float32, count);
      convert(back.data(), DType::float32, bits.data(), type, count);
      for (size_t i = 0; i < 70; ++i) {
        if (static_cast<int64_t>(i) < count) {
          ASSERT_TRUE(std::isnan(back[i]));
        } else {
          ASSERT_EQ(bits[i], 0x1234);
          ASSERT_EQ(back[i], -1);
        }
      }
    }
}

TEST(Convert, BetweenNarrowTypesGoesThroughFloat32) {
  const std::vector<uint16_t> source{0x3f80, 0x4780, 0x3380};  // 1, 65536, 2^-24
  std::vector<uint16_t> half(3);
  convert(half.data(), DType::float16, source.data(), DType::bfloat16, 3);
  EXPECT_EQ(half, (std::vector<uint16_t>{0x3c00, 0x7c00, 0x0001}));
}

TEST(Convert, OtherTypesAreRefused) {
  int32_t integer = 1;
  float value = 0;
  EXPECT_THROW(convert(&value, DType::float32, &integer, DType::int32, 1), InternalError);
}

}  // namespace
}  // namespace lockstep::tensor
