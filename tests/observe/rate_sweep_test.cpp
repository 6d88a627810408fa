#include "observe/rate_sweep.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::observe {
namespace {

/// So many rates from 1e-4 to 1, with losses by a function of the rate's logarithm to base 10.
template <class Loss>
RateSweep sweep_of(int count, const Loss& loss) {
  RateSweep sweep;
  for (int i = 0; i < count; ++i) {
    const double decade = -4 + 4.0 * i / (count - 1);
    sweep.add({.rate = std::pow(10, decade), .loss = loss(decade)});
  }
  return sweep;
}

/// Falls from 2 to 1 around 0.01, and rises from 0.1 on.
double valley(double decade) {
  const double fall = 1.5 - 0.5 * std::tanh(3 * (decade + 2));
  return fall + (decade > -1 ? 2 * (decade + 1) * (decade + 1) : 0);
}

TEST(RateSweep, SuggestsAThirdOfTheRateWithTheLowestLoss) {
  const auto finding = sweep_of(201, valley).finding();
  ASSERT_TRUE(finding && finding->steepest && finding->suggested);
  EXPECT_DOUBLE_EQ(*finding->suggested, finding->lowest_rate / 3);
  EXPECT_NEAR(std::log10(*finding->steepest), -2, 0.03);
  EXPECT_NEAR(std::log10(finding->lowest_rate), -1, 0.06);
  EXPECT_NEAR(finding->lowest_loss, 1, 0.01);
  EXPECT_FALSE(finding->at_the_end);
}

TEST(RateSweep, LooksThroughNoise) {
  int i = 0;
  const auto noisy = [&](double decade) { return valley(decade) + (++i % 2 == 0 ? 0.3 : -0.3); };
  const auto finding = sweep_of(201, noisy).finding();
  ASSERT_TRUE(finding && finding->steepest);
  EXPECT_NEAR(std::log10(*finding->steepest), -2, 0.15);
}

TEST(RateSweep, SuggestsNothingIfTheLossDoesNotFall) {
  const auto finding = sweep_of(50, [](double) { return 2.0; }).finding();
  ASSERT_TRUE(finding);
  EXPECT_FALSE(finding->steepest);
  EXPECT_FALSE(finding->suggested);
  EXPECT_FALSE(sweep_of(50, [](double decade) { return 2 + decade * 0.001; }).finding()->steepest);
  EXPECT_FALSE(RateSweep().finding());
  EXPECT_FALSE(sweep_of(2, valley).finding());
}

TEST(RateSweep, SaysThatTheLowestIsAtTheEnd) {
  EXPECT_TRUE(sweep_of(50, [](double decade) { return 1 - decade; }).finding()->at_the_end);
}

TEST(RateSweep, DivergesIfTheLossIsNotFiniteOrFourTimesTheLowest) {
  RateSweep sweep = sweep_of(20, [](double) { return 1.0; });
  EXPECT_FALSE(sweep.diverged());
  // The mean of five, of which one is 15, is 3.8.
  sweep.add({.rate = 2, .loss = 15});
  EXPECT_FALSE(sweep.diverged());
  sweep.add({.rate = 3, .loss = 4});
  EXPECT_TRUE(sweep.diverged());
  sweep = sweep_of(20, [](double) { return 1.0; });
  sweep.add({.rate = 2, .loss = std::numeric_limits<double>::quiet_NaN()});
  EXPECT_TRUE(sweep.diverged());
  EXPECT_EQ(sweep.smoothed().size(), 20u);
  EXPECT_FALSE(RateSweep().diverged());
}

TEST(RateSweep, SmoothsWithoutALag) {
  const auto line = [](double decade) { return 10 + decade; };
  const RateSweep sweep = sweep_of(100, line);
  const auto smoothed = sweep.smoothed();
  for (size_t i = 0; i < smoothed.size(); ++i)
    EXPECT_NEAR(smoothed[i].loss, sweep.points()[i].loss, 1e-12) << i;
}

}  // namespace
}  // namespace lockstep::observe
