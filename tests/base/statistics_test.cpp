#include "base/statistics.h"

#include <gtest/gtest.h>

#include <random>

namespace lockstep {
namespace {

TEST(Statistics, MediansAreInTheMiddle) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1}), 3);
  EXPECT_EQ(median({9, 1, 4}), 4);
  EXPECT_EQ(median({4, 1, 8, 2}), 3);
}

TEST(Statistics, AnIntervalOfEqualSamplesIsAPoint) {
  const Interval interval = bootstrap_median({2, 2, 2, 2});
  EXPECT_EQ(interval.low, 2);
  EXPECT_EQ(interval.high, 2);
  EXPECT_EQ(bootstrap_median({7}).high, 7);
}

/// With three samples the median of a draw is the smallest where at least two of three are: 7 of 27, more
/// than the 2.5 % that lie outside of either end.
TEST(Statistics, AnIntervalOfThreeSamplesIsTheirRange) {
  const Interval interval = bootstrap_median({1, 2, 10});
  EXPECT_EQ(interval.low, 1);
  EXPECT_EQ(interval.high, 10);
}

/// The interval of the median of n samples of a normal distribution has about 2 * 1.96 * 1.2533 / sqrt(n)
/// standard deviations.
TEST(Statistics, IntervalsNarrowWithTheSquareRootOfTheSamples) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(100, 1);
  std::vector<double> samples;
  for (int i = 0; i < 1600; ++i) samples.push_back(normal(random));
  const Interval interval = bootstrap_median(samples);
  EXPECT_LT(interval.low, 100.05);
  EXPECT_GT(interval.high, 99.95);
  EXPECT_NEAR(interval.high - interval.low, 2 * 1.96 * 1.2533 / 40, 0.04);
  const Interval again = bootstrap_median(samples);
  EXPECT_EQ(interval.low, again.low);
  EXPECT_EQ(interval.high, again.high);
}

}  // namespace
}  // namespace lockstep
