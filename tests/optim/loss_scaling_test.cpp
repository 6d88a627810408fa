#include "optim/loss_scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::optim {
namespace {

/// The scale before each step; 'x' is a step that overflowed, '.' one that did not.
std::vector<double> scales(LossScaler scaler, const std::string& steps) {
  std::vector<double> result;
  for (const char step : steps) {
    result.push_back(scaler.scale());
    if (step == 'x') {
      scaler.step_overflowed();
    } else {
      scaler.step_was_finite();
    }
  }
  result.push_back(scaler.scale());
  return result;
}

TEST(LossScaler, HalvesOnOverflowAndDoublesAfterAnIntervalWithoutOne) {
  const LossScaler scaler({.initial_scale = 64, .growth_interval = 3, .minimum = 1});
  EXPECT_EQ(scales(scaler, "x.....x...."),
            (std::vector<double>{64, 32, 32, 32, 64, 64, 64, 32, 32, 32, 64, 64}));
}

TEST(LossScaler, AnOverflowBeginsTheIntervalAnew) {
  const LossScaler scaler({.initial_scale = 8, .growth_interval = 3, .minimum = 1});
  EXPECT_EQ(scales(scaler, "..x..."), (std::vector<double>{8, 8, 8, 4, 4, 4, 8}));
}

TEST(LossScaler, BeginsAt65536AndDoublesAfter2000Steps) {
  LossScaler scaler({});
  for (int step = 0; step < 1999; ++step) scaler.step_was_finite();
  EXPECT_EQ(scaler.scale(), 65536);
  scaler.step_was_finite();
  EXPECT_EQ(scaler.scale(), 131072);
}

TEST(LossScaler, AtItsMinimumItSaysSoAndStays) {
  LossScaler scaler({.initial_scale = 4, .growth_interval = 10, .minimum = 2});
  scaler.step_was_finite();
  EXPECT_TRUE(scaler.step_overflowed());
  EXPECT_EQ(scaler.scale(), 2);
  EXPECT_FALSE(scaler.step_overflowed());
  EXPECT_EQ(scaler.scale(), 2);
}

TEST(LossScaler, AnOverflowAtTheMinimumBeginsTheIntervalAnewToo) {
  const LossScaler scaler({.initial_scale = 2, .growth_interval = 3, .minimum = 2});
  EXPECT_EQ(scales(scaler, "..x..."), (std::vector<double>{2, 2, 2, 2, 2, 2, 4}));
}

TEST(LossScaler, GoesOnFromItsState) {
  const LossScalingOptions options{.initial_scale = 1024, .growth_interval = 3, .minimum = 1};
  LossScaler first(options);
  EXPECT_TRUE(first.step_overflowed());
  first.step_was_finite();
  first.step_was_finite();
  EXPECT_EQ(first.state(), (LossScalingState{.scale = 512, .good_steps = 2}));
  LossScaler second(options);
  second.restore(first.state());
  second.step_was_finite();
  EXPECT_EQ(second.state(), (LossScalingState{.scale = 1024, .good_steps = 0}));
}

TEST(LossScaler, RestoredBelowItsMinimumItIsRaised) {
  LossScaler scaler({.initial_scale = 64, .growth_interval = 3, .minimum = 16});
  scaler.restore({.scale = 2, .good_steps = 1});
  EXPECT_EQ(scaler.scale(), 16);
}

TEST(LossScaler, IsNotDoubledBeyondItsMaximum) {
  const LossScaler scaler({.initial_scale = 8, .growth_interval = 2, .minimum = 1, .maximum = 16});
  EXPECT_EQ(scales(scaler, "......x.."), (std::vector<double>{8, 8, 16, 16, 16, 16, 16, 8, 8, 16}));
}

TEST(LossScaler, StopsAtTwoToThe24thWhereNothingElseIsAsked) {
  LossScaler scaler({.growth_interval = 1});
  for (int step = 0; step < 7; ++step) scaler.step_was_finite();
  EXPECT_EQ(scaler.scale(), 8388608);
  for (int step = 0; step < 5; ++step) scaler.step_was_finite();
  EXPECT_EQ(scaler.scale(), 16777216);
}

TEST(LossScaler, RestoredAboveItsMaximumItIsLowered) {
  LossScaler scaler({.initial_scale = 64, .growth_interval = 3, .minimum = 16, .maximum = 128});
  scaler.restore({.scale = 1024, .good_steps = 1});
  EXPECT_EQ(scaler.state(), (LossScalingState{.scale = 128, .good_steps = 1}));
}

TEST(LossScaler, ScalesThatAreNoPowersOfTwoAreRefused) {
  EXPECT_THROW(LossScaler({.initial_scale = 1000}), InternalError);
  EXPECT_THROW(LossScaler({.initial_scale = 2, .minimum = 4}), InternalError);
  LossScaler scaler({});
  EXPECT_THROW(scaler.restore({.scale = 0}), ConfigError);
  EXPECT_FALSE(is_power_of_two(-2));
  EXPECT_FALSE(is_power_of_two(3));
  EXPECT_FALSE(is_power_of_two(std::numeric_limits<double>::infinity()));
}

}  // namespace
}  // namespace lockstep::optim
