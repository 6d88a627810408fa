#include <gtest/gtest.h>

#include <vector>

#include "optim/optimizer.h"

namespace lockstep::optim {
namespace {

std::vector<double> rates(const ScheduleOptions& schedule, double peak, int64_t total_steps) {
  std::vector<double> result;
  for (int64_t step = 0; step < total_steps; ++step)
    result.push_back(learning_rate_at({.learning_rate = peak}, schedule, step, total_steps));
  return result;
}

void expect_rates(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-15) << "step " << i;
}

TEST(LearningRate, ConstantStaysAtThePeak) { expect_rates(rates({}, 0.5, 3), {0.5, 0.5, 0.5}); }

TEST(LearningRate, WarmsUpLinearlyToThePeak) {
  expect_rates(rates({.warmup_steps = 4}, 0.8, 6), {0.2, 0.4, 0.6, 0.8, 0.8, 0.8});
}

TEST(LearningRate, CosineFallsToTheMinimumAtTheLastStep) {
  // cos(pi k / 4) = 1, 1/sqrt 2, 0, -1/sqrt 2, -1.
  expect_rates(rates({.kind = ScheduleKind::cosine, .minimum = 0.2}, 1.0, 5),
               {1, 0.6 + 0.4 * 0.7071067811865476, 0.6, 0.6 - 0.4 * 0.7071067811865476, 0.2});
}

TEST(LearningRate, CosineBeginsAfterTheWarmUp) {
  expect_rates(rates({.kind = ScheduleKind::cosine, .warmup_steps = 2}, 1.0, 5), {0.5, 1, 1, 0.5, 0});
}

TEST(LearningRate, CosineOfOneStepIsThePeak) {
  expect_rates(rates({.kind = ScheduleKind::cosine, .minimum = 0.1}, 1.0, 1), {1});
}

TEST(LearningRate, CosineOfOneStepAfterTheWarmUpEndsThere) {
  expect_rates(rates({.kind = ScheduleKind::cosine, .warmup_steps = 2, .minimum = 0.1}, 1.0, 3),
               {0.5, 1, 0.1});
}

TEST(LearningRate, CosineCountsStepsOfOtherBatchesAsWhatTheyAreWorth) {
  const ScheduleOptions cosine{.kind = ScheduleKind::cosine, .warmup_steps = 2};
  const auto rate = [&](int64_t step, int64_t total, double shift) {
    return learning_rate_at({.learning_rate = 1}, cosine, step, total, shift);
  };
  EXPECT_NEAR(rate(6, 11, 0), 0.5, 1e-15);
  // Eight steps of half the batch: four of this one.
  EXPECT_NEAR(rate(10, 15, -4), 0.5, 1e-15);
  EXPECT_NEAR(rate(4, 9, 2), 0.5, 1e-15);
  EXPECT_NEAR(rate(14, 15, -4), 0, 1e-15);
  EXPECT_NEAR(rate(5, 15, -4), 1, 1e-15);  // its samples would be within the warm-up
}

TEST(LearningRate, WarmUpLongerThanTheRunNeverReachesThePeak) {
  expect_rates(rates({.kind = ScheduleKind::cosine, .warmup_steps = 4}, 1.0, 3), {0.25, 0.5, 0.75});
}

}  // namespace
}  // namespace lockstep::optim
