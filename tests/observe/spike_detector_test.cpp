#include "observe/spike_detector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

namespace lockstep::observe {
namespace {

constexpr double kInfiniteLoss = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Normal noise whose values no standard library chooses.
class Noise {
 public:
  explicit Noise(uint64_t seed) : bits_(seed) {}
  double operator()() {
    const double u = (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53;
    const double v = (static_cast<double>(bits_() >> 11) + 0.5) * 0x1p-53;
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  }

 private:
  std::mt19937_64 bits_;
};

struct Step {
  double loss, norm;
};

/// A curve of 10,000 steps: a loss that falls from 4.2 to 1.2 with noise of `loss_noise` around it, and a
/// norm that rises with time and whose noise is wider.
std::vector<Step> curve(uint64_t seed, double loss_noise) {
  Noise noise(seed);
  std::vector<Step> steps;
  for (int t = 0; t < 10000; ++t)
    steps.push_back({(1.2 + 3 * std::exp(-t / 800.0)) * std::exp(loss_noise * noise()),
                     (0.5 + t / 20000.0) * std::exp(0.35 * noise())});
  return steps;
}

std::vector<int> alarms(const std::vector<Step>& steps, double threshold = 8) {
  SpikeDetector detector(threshold);
  std::vector<int> found;
  for (size_t t = 0; t < steps.size(); ++t)
    if (detector.add(static_cast<int64_t>(t), steps[t].loss, steps[t].norm))
      found.push_back(static_cast<int>(t));
  return found;
}

/// Fifty steps of mean 0 and deviation 0.1 in the logarithm of the loss, exactly; of deviation 0.2 in that of
/// the norm.
void warm_up(SpikeDetector& detector) {
  for (int t = 0; t < 50; ++t) {
    const double sign = t % 2 == 0 ? 1 : -1;
    EXPECT_FALSE(detector.add(t, std::exp(0.1 * sign), std::exp(0.2 * sign)));
  }
}

TEST(SpikeDetector, MeasuresDeviationsOfTheLogarithm) {
  SpikeDetector detector(8);
  warm_up(detector);
  EXPECT_FALSE(detector.add(50, std::exp(0.0), std::exp(0.0)));
  // A step at the mean, of weight 0.02: the variance is now 0.98 * 0.01, the deviation 0.0989949.
  const auto spike = detector.add(51, std::exp(1.0), std::exp(0.0));
  ASSERT_TRUE(spike);
  EXPECT_NEAR(spike->loss_z.value(), 10.1015, 1e-4);
  EXPECT_FALSE(spike->norm_z);
  EXPECT_EQ(spike->message, "step 51: loss 2.71828 lies 10.1 standard deviations above its recent mean of 1");
}

TEST(SpikeDetector, TellsOfTheNormToo) {
  SpikeDetector detector(8);
  warm_up(detector);
  const auto spike = detector.add(50, std::exp(2.0), std::exp(2.0));
  ASSERT_TRUE(spike);
  EXPECT_NEAR(spike->loss_z.value(), 20, 1e-9);
  EXPECT_NEAR(spike->norm_z.value(), 10, 1e-9);
  EXPECT_EQ(spike->message,
            "step 50: loss 7.38906 lies 20.0 standard deviations above its recent mean of 1; gradient norm "
            "7.38906 lies 10.0 "
            "standard deviations above its recent mean of 1");
}

TEST(SpikeDetector, TellsOnlyWhatIsBeyondTheThreshold) {
  for (const auto& [threshold, told] :
       {std::pair(9.9, true), std::pair(10.1, false), std::pair(0.0, false)}) {
    SpikeDetector detector(threshold);
    warm_up(detector);
    EXPECT_EQ(detector.add(50, std::exp(1.0), 1).has_value(), told) << threshold;
  }
}

TEST(SpikeDetector, SaysNothingWhileItKnowsTooLittle) {
  SpikeDetector detector(8);
  for (int t = 0; t < 49; ++t) EXPECT_FALSE(detector.add(t, 1, 1));
  EXPECT_FALSE(detector.add(49, 1000, 1000));
}

TEST(SpikeDetector, WhatFallsIsNoSpike) {
  SpikeDetector detector(8);
  warm_up(detector);
  EXPECT_FALSE(detector.add(50, 1e-6, 1e-6));
  EXPECT_FALSE(detector.add(51, 0, 0));
}

TEST(SpikeDetector, APlateausLastDigitsAreNoSpike) {
  std::vector<Step> steps(2000, {0.25, 3.0});
  for (size_t t = 0; t < steps.size(); t += 7) steps[t] = {0.25 * 1.3, 3.0 * 1.6};
  EXPECT_EQ(alarms(steps), std::vector<int>{});
  steps.assign(2000, {0.25, 3.0});
  steps[1500].loss = 0.25 * 1.4;
  EXPECT_EQ(alarms(steps), std::vector<int>{});
  steps[1500].loss = 0.25 * 1.6;
  EXPECT_EQ(alarms(steps), std::vector<int>{1500});
}

TEST(SpikeDetector, WhatIsNotFiniteIsLeftOut) {
  SpikeDetector detector(8);
  warm_up(detector);
  for (const double value : {kNan, kInfiniteLoss}) {
    EXPECT_FALSE(detector.add(50, value, 1));
    EXPECT_FALSE(detector.add(50, 1, value));
  }
  const auto spike = detector.add(51, std::exp(1.0), 1);  // as if they had not been
  ASSERT_TRUE(spike);
  EXPECT_NEAR(spike->loss_z.value(), 10, 1e-9);
}

TEST(SpikeDetector, OneEventIsToldOnceAndTheNextOneAgain) {
  std::vector<Step> steps = curve(1, 0.05);
  for (int t = 5000; t < 5020; ++t) steps[static_cast<size_t>(t)].loss *= 10;
  steps[7000].loss *= 10;
  EXPECT_EQ(alarms(steps), (std::vector<int>{5000, 7000}));
}

TEST(SpikeDetector, ALastingRiseBecomesUsual) {
  std::vector<Step> steps = curve(2, 0.05);
  for (size_t t = 5000; t < steps.size(); ++t) steps[t].loss *= 10, steps[t].norm *= 20;
  EXPECT_EQ(alarms(steps), std::vector<int>{5000});
}

TEST(SpikeDetector, NoisyTrainingGivesNoAlarmAndAJumpGivesOne) {
  for (uint64_t seed = 1; seed <= 8; ++seed)
    for (const double noise : {0.0, 0.02, 0.1, 0.2}) {
      auto steps = curve(seed, noise);
      EXPECT_EQ(alarms(steps), std::vector<int>{}) << seed << ", " << noise;
      steps[6000].loss *= 10;
      EXPECT_EQ(alarms(steps), std::vector<int>{6000}) << seed << ", " << noise;
    }
}

TEST(SpikeDetector, AHardSampleLateInTrainingIsNoSpike) {
  // Batches whose loss is next to nothing, but for the one in thirty that holds a sample not yet learnt.
  Noise noise(3);
  std::vector<Step> steps;
  for (int t = 0; t < 5000; ++t) {
    const double size = std::exp(noise()) * (t % 30 == 0 ? 20 : 1);
    steps.push_back({0.002 * size, 0.01 * size});
  }
  EXPECT_EQ(alarms(steps), std::vector<int>{});
}

}  // namespace
}  // namespace lockstep::observe
