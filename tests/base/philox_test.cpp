#include "base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace lockstep {
namespace {

void expect_block(Philox::Block counter, uint64_t key, std::array<uint32_t, 4> expected) {
  const auto block = Philox::generate(counter, key);
  EXPECT_EQ((std::array{block.word[0], block.word[1], block.word[2], block.word[3]}), expected);
}

// kat_vectors of Random123, philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  expect_block({{0, 0, 0, 0}}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect_block({{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}}, ~uint64_t{0},
               {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect_block({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822u,
               {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Philox, UniformOfAWordHasTwentyFourBits) {
  EXPECT_EQ(Philox::uniform(0), 0.0f);
  EXPECT_EQ(Philox::uniform(0xFF), 0.0f);
  EXPECT_EQ(Philox::uniform(0x100), 0x1p-24f);
  EXPECT_EQ(Philox::uniform(0x80000000u), 0.5f);
  EXPECT_EQ(Philox::uniform(0xFFFFFFFFu), 1.0f - 0x1p-24f);
}

TEST(PhiloxStreams, UniformComesFromTheFirstTwoWords) {
  // Counter (index low, index high, stream, purpose) and the seed as key: the known answer for zeros cannot
  // be reached, since purposes start at 1, so the block is computed here.
  const auto block = Philox::generate({{5, 1, 9, 2}}, 77);
  const double expected =
      std::ldexp(static_cast<double>((uint64_t{block.word[0]} << 32 | block.word[1]) >> 11), -53);
  EXPECT_EQ(philox_uniform(77, RandomPurpose::dropout, 9, (uint64_t{1} << 32) + 5), expected);
}

TEST(PhiloxStreams, DifferBySeedPurposeStreamAndIndex) {
  std::set<double> values;
  for (uint64_t seed : {1, 2})
    for (const auto purpose : {RandomPurpose::initialization, RandomPurpose::dropout,
                               RandomPurpose::sample_order, RandomPurpose::data_generation})
      for (uint32_t stream : {0u, 1u})
        for (uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32})
          values.insert(philox_uniform(seed, purpose, stream, index));
  EXPECT_EQ(values.size(), 2u * 4 * 2 * 3);
}

TEST(PhiloxStreams, AreFunctionsOfTheirArguments) {
  EXPECT_EQ(philox_uniform(3, RandomPurpose::dropout, 4, 5), philox_uniform(3, RandomPurpose::dropout, 4, 5));
  EXPECT_EQ(philox_normal(3, RandomPurpose::initialization, 4, 5),
            philox_normal(3, RandomPurpose::initialization, 4, 5));
}

// Over 100,000 numbers the mean of a standard normal is within 0.0032 with one standard deviation; bounds are
// wide.
TEST(PhiloxStreams, NormalHasMeanZeroAndVarianceOne) {
  const int count = 100'000;
  double sum = 0, squares = 0, largest = 0;
  for (int i = 0; i < count; ++i) {
    const double value = philox_normal(1, RandomPurpose::initialization, 0, static_cast<uint64_t>(i));
    ASSERT_TRUE(std::isfinite(value));
    sum += value;
    squares += value * value;
    largest = std::max(largest, std::abs(value));
  }
  EXPECT_NEAR(sum / count, 0.0, 0.02);
  EXPECT_NEAR(squares / count, 1.0, 0.03);
  EXPECT_GT(largest, 3.5);
  EXPECT_LT(largest, 9.0);
}

TEST(PhiloxStreams, UniformFillsTheUnitInterval) {
  const int count = 100'000;
  std::array<int, 10> bins{};
  for (int i = 0; i < count; ++i) {
    const double value = philox_uniform(1, RandomPurpose::sample_order, 0, static_cast<uint64_t>(i));
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    ++bins[static_cast<size_t>(value * 10)];
  }
  for (const int bin : bins) EXPECT_NEAR(bin, 10'000, 600);
}

}  // namespace
}  // namespace lockstep
