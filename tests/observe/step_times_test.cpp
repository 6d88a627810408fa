#include "observe/step_times.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

StepTimes times_of(const std::vector<double>& milliseconds) {
  StepTimes times;
  for (double each : milliseconds) times.add(each);
  return times;
}

TEST(StepTimes, SaysNothingOfNoSteps) {
  EXPECT_FALSE(StepTimes().summary());
  EXPECT_FALSE(StepTimes().per_second(8));
  EXPECT_FALSE(times_of({0, 0}).per_second(8)) << "no time has passed";
}

TEST(StepTimes, CountsEachOfFiveStepsExactly) {
  const auto times = times_of({9, 1, 5, 3, 7});
  EXPECT_EQ(times.measured(), 5);
  EXPECT_EQ(times.summary()->mean, 5);
  EXPECT_EQ(times.summary()->p50, 5);
  EXPECT_EQ(times.summary()->p99, 9);
  EXPECT_EQ(times.per_second(10), 2000);  // 50 samples in 25 ms
}

TEST(StepTimes, PercentilesAreOfNearestRank) {
  const auto times = times_of({4, 1, 3, 2});
  EXPECT_EQ(times.summary()->p50, 2);
  EXPECT_EQ(times.summary()->p99, 4);
}

TEST(StepTimes, LeavesOutTheFirstFiveWhereThereAreMore) {
  const auto times = times_of({1000, 1000, 1000, 1000, 1000, 2});
  EXPECT_EQ(times.steps(), 6);
  EXPECT_EQ(times.measured(), 1);
  EXPECT_EQ(times.summary()->mean, 2);
  EXPECT_EQ(times.summary()->p50, 2);
  EXPECT_EQ(times.summary()->p99, 2);
  EXPECT_EQ(times.per_second(128), 64000);
}

TEST(StepTimes, PercentilesOfManyStepsAreWithinHalfAPercent) {
  StepTimes times;
  for (int i = 0; i < 5; ++i) times.add(1e6);
  for (int i = 100'000; i >= 1; --i) times.add(i * 0.001);  // 0.001 to 100 ms
  EXPECT_NEAR(times.summary()->mean, 50.0005, 1e-6);
  EXPECT_NEAR(times.summary()->p50, 50.0, 0.25);
  EXPECT_NEAR(times.summary()->p99, 99.0, 0.5);
  EXPECT_EQ(times.measured(), 100'000);
}

TEST(StepTimes, OneSlowStepInAHundredIsTheTailOnlyBeyondThe99th) {
  std::vector<double> milliseconds(105, 10);
  milliseconds[50] = 500;
  EXPECT_NEAR(times_of(milliseconds).summary()->p99, 10, 0.05) << "the 99th of 100";
  milliseconds[51] = 500;
  EXPECT_EQ(times_of(milliseconds).summary()->p99, 500);
}

TEST(StepTimes, HoldsWhatLiesOutsideItsBuckets) {
  const auto low = times_of({1, 1, 1, 1, 1, 0, 0, 0});
  EXPECT_EQ(low.summary()->p50, 0);
  const auto high = times_of({1, 1, 1, 1, 1, 1e12, 1e12});
  EXPECT_EQ(high.summary()->p99, 1e12);
}

TEST(StepTimes, RefusesWhatIsNoTime) {
  StepTimes times;
  EXPECT_THROW(times.add(-1), InternalError);
  EXPECT_THROW(times.add(std::numeric_limits<double>::quiet_NaN()), InternalError);
  EXPECT_THROW(times.add(HUGE_VAL), InternalError);
  EXPECT_EQ(times.steps(), 0);
}

}  // namespace
}  // namespace lockstep::observe
