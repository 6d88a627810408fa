#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/op_testing.h"
#include "optim/batch_scaling.h"

namespace lockstep::optim {
namespace {

std::vector<double> rates(const ScheduleOptions& schedule, double peak, const ScheduleSpan& span) {
  std::vector<double> result;
  for (int64_t step = 0; step < span.total_steps; ++step)
    result.push_back(learning_rate_at(peak, schedule, step, span));
  return result;
}

std::vector<double> rates(const ScheduleOptions& schedule, double peak, int64_t total_steps) {
  return rates(schedule, peak, ScheduleSpan{.total_steps = total_steps});
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

TEST(LearningRate, OfOneStepIsThePeakWhateverItFallsTo) {
  for (const ScheduleKind kind :
       {ScheduleKind::cosine, ScheduleKind::linear, ScheduleKind::polynomial, ScheduleKind::stable_decay})
    expect_rates(rates({.kind = kind, .minimum = 0.1}, 1.0, 1), {1});
}

TEST(LearningRate, CosineOfOneStepAfterTheWarmUpEndsThere) {
  expect_rates(rates({.kind = ScheduleKind::cosine, .warmup_steps = 2, .minimum = 0.1}, 1.0, 3),
               {0.5, 1, 0.1});
}

TEST(LearningRate, CosineCountsStepsOfOtherBatchesAsWhatTheyAreWorth) {
  const ScheduleOptions cosine{.kind = ScheduleKind::cosine, .warmup_steps = 2};
  const auto rate = [&](int64_t step, int64_t total, double shift) {
    return learning_rate_at(1, cosine, step, {.total_steps = total, .shift = shift});
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

/// Goyal et al., 2017: from the small batch's rate, by a constant amount at each step.
TEST(LearningRate, WarmsUpFromTheRateOfASmallerBatch) {
  expect_rates(rates({.warmup_steps = 4, .warmup_from = 0.2}, 1.0, 6), {0.2, 0.4, 0.6, 0.8, 1, 1});
  // Two epochs of 10 samples are 5 steps of 4.
  const ScheduleSpan span{.total_steps = 7, .samples_per_step = 4, .epoch_samples = 10};
  expect_rates(rates({.warmup_epochs = 2, .warmup_from = 0.5}, 1.0, span), {0.5, 0.6, 0.7, 0.8, 0.9, 1, 1});
  // What follows counts from the warm-up's end.
  expect_rates(rates({.kind = ScheduleKind::linear, .warmup_epochs = 0.8, .warmup_from = 0.5}, 1.0, span),
               {0.5, 0.75, 1, 0.75, 0.5, 0.25, 0});
}

TEST(LearningRate, WarmUpByEpochsCountsSamplesOfOtherBatches) {
  const ScheduleOptions schedule{.warmup_epochs = 2, .warmup_from = 0.5};
  // Two steps of 4 samples, then steps of 2: the third begins after 8 of 20 samples.
  const ScheduleSpan span{.total_steps = 100, .samples_per_step = 2, .shift_samples = 4, .epoch_samples = 10};
  EXPECT_NEAR(learning_rate_at(1, schedule, 2, span), 0.7, 1e-15);
  EXPECT_NEAR(learning_rate_at(1, schedule, 8, span), 1, 1e-15);
}

TEST(LearningRate, PassesByEqualFactors) {
  expect_rates(rates({.kind = ScheduleKind::points,
                      .unit = ScheduleUnit::share,
                      .points = {{0, 1e-3}, {1, 10}},
                      .interpolation = Interpolation::exponential},
                     1.0, 5),
               {1e-3, 1e-2, 0.1, 1, 10});
}

TEST(BatchScaling, IsInProportionOrWithTheSquareRoot) {
  const BatchScaling linear{.learning_rate = 0.1, .from = 256, .rule = ScalingRule::linear};
  EXPECT_DOUBLE_EQ(linear.rate_for(8192), 3.2);
  EXPECT_DOUBLE_EQ(linear.rate_for(64), 0.025);
  const BatchScaling square_root{.learning_rate = 1e-3, .from = 256, .rule = ScalingRule::square_root};
  EXPECT_DOUBLE_EQ(square_root.rate_for(1024), 2e-3);
}

struct GoldenSchedule {
  std::string name;
  double peak;
  ScheduleOptions schedule;
};

TEST(LearningRate, IsPyTorchsAtEachStep) {
  using enum ScheduleKind;
  const std::vector<GoldenSchedule> cases = {
      {"step", 0.4, {.kind = step, .gamma = 0.5, .every = 3}},
      {"multi_step", 0.4, {.kind = step, .milestones = {2, 5, 7}}},
      {"linear", 0.4, {.kind = linear, .minimum = 0.08}},
      {"polynomial", 0.4, {.kind = polynomial, .power = 2.5}},
      {"cosine", 0.4, {.kind = cosine, .minimum = 0.01}},
      {"one_cycle", 0.5, {.kind = one_cycle, .interpolation = Interpolation::cosine}},
      {"one_cycle_linear",
       0.5,
       {.kind = one_cycle, .rising_share = 0.25, .first_divisor = 10, .last_divisor = 100}},
      {"one_cycle_three_phase",
       0.5,
       {.kind = one_cycle, .interpolation = Interpolation::cosine, .rising_share = 0.4, .three_phase = true}},
      {"stable_decay",
       0.4,
       {.kind = stable_decay, .warmup_steps = 4, .minimum = 0.1, .decay_share = 6.0 / 19}}};
  for (const GoldenSchedule& c : cases) {
    const auto expected = testing::read_golden("schedules", c.name).at("rates").values;
    const auto actual = rates(c.schedule, c.peak, static_cast<int64_t>(expected.size()));
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(actual[i], expected[i], 1e-8 * expected[i]) << c.name << " at step " << i;
  }
}

TEST(LearningRate, StableDecayFallsAsItsShapeSays) {
  const auto falling = [](DecayShape shape) {
    return rates({.kind = ScheduleKind::stable_decay, .decay_share = 0.5, .shape = shape}, 1.0, 9);
  };
  expect_rates(falling(DecayShape::linear), {1, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0});
  expect_rates(falling(DecayShape::one_minus_sqrt),
               {1, 1, 1, 1, 1, 0.5, 1 - 0.7071067811865476, 1 - 0.8660254037844386, 0});
  expect_rates(falling(DecayShape::cosine),
               {1, 1, 1, 1, 1, 0.5 + 0.5 * 0.7071067811865476, 0.5, 0.5 - 0.5 * 0.7071067811865476, 0});
}

TEST(LearningRate, PassesFromPointToPoint) {
  ScheduleOptions schedule{.kind = ScheduleKind::points, .points = {{1, 0.5}, {3, 1}, {5, 0}}};
  expect_rates(rates(schedule, 2, 7), {1, 1, 1.5, 2, 1, 0, 0});
  schedule.interpolation = Interpolation::hold;
  expect_rates(rates(schedule, 2, 7), {1, 1, 1, 2, 2, 0, 0});
  schedule.interpolation = Interpolation::cosine;
  expect_rates(rates(schedule, 2, 7), {1, 1, 1.5, 2, 1, 0, 0});
}

TEST(LearningRate, CountsInEachUnit) {
  // 10 samples a step, 40 in an epoch: step 4 begins the second epoch, step 8 is the last.
  const ScheduleSpan span{.total_steps = 9, .samples_per_step = 10, .epoch_samples = 40};
  const std::vector<double> expected{1, 1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25};
  for (const auto& [unit, every] :
       {std::pair(ScheduleUnit::steps, 4.0), std::pair(ScheduleUnit::epochs, 1.0),
        std::pair(ScheduleUnit::samples, 40.0), std::pair(ScheduleUnit::share, 0.5)})
    expect_rates(rates({.kind = ScheduleKind::step, .gamma = 0.5, .every = every, .unit = unit}, 1, span),
                 expected);
}

TEST(LearningRate, EpochsAndSamplesGoOnWhereOtherBatchesHaveLeftOff) {
  // Four steps of 20 samples, then some of 10: the sample after 80 is that of step 4.
  const ScheduleSpan span{
      .total_steps = 8, .shift = 4, .samples_per_step = 10, .shift_samples = 40, .epoch_samples = 40};
  const ScheduleOptions epochs{
      .kind = ScheduleKind::step, .gamma = 0.5, .every = 1, .unit = ScheduleUnit::epochs};
  EXPECT_DOUBLE_EQ(learning_rate_at(1, epochs, 4, span), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate_at(1, epochs, 7, span), 0.25);
  ScheduleOptions samples = epochs;
  samples.every = 100;
  samples.unit = ScheduleUnit::samples;
  EXPECT_DOUBLE_EQ(learning_rate_at(1, samples, 5, span), 1);
  EXPECT_DOUBLE_EQ(learning_rate_at(1, samples, 6, span), 0.5);
}

TEST(LearningRate, IsThatOfALongerRunFromTheFirstStepOn) {
  for (const ScheduleKind kind :
       {ScheduleKind::linear, ScheduleKind::one_cycle, ScheduleKind::stable_decay}) {
    const ScheduleOptions schedule{.kind = kind};
    const auto longer = rates(schedule, 1, 20), shorter = rates(schedule, 1, 10);
    EXPECT_NEAR(longer.back(), shorter.back(), 1e-15);
    EXPECT_GT(longer[9], shorter[9]);
  }
}

}  // namespace
}  // namespace lockstep::optim
