#include "infer/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::infer {
namespace {

// Probabilities 1/2, 1/4, 1/8, 1/8 of tokens 2, 0, 1, 3.
const std::vector<float> kLogits{std::log(2.0f), 0, std::log(4.0f), 0};

TEST(Sampling, TakesTokensByTheirProbability) {
  EXPECT_EQ(choose(kLogits, {}, 0), 2);
  EXPECT_EQ(choose(kLogits, {}, 0.49), 2);
  EXPECT_EQ(choose(kLogits, {}, 0.51), 0);
  EXPECT_EQ(choose(kLogits, {}, 0.76), 1);
  EXPECT_EQ(choose(kLogits, {}, 0.999999), 3);
}

TEST(Sampling, WithoutTemperatureTakesTheMostProbableAndTheLowestOfEquals) {
  EXPECT_EQ(choose(kLogits, {.temperature = 0}, 0.99), 2);
  EXPECT_EQ(choose(std::vector<float>{1, 3, 3}, {.temperature = 0}, 0.99), 1);
}

TEST(Sampling, TemperatureFlattensOrSharpens) {
  // At temperature 1/2 the weights are 16, 4, 1, 1.
  EXPECT_EQ(choose(kLogits, {.temperature = 0.5}, 15.9 / 22), 2);
  EXPECT_EQ(choose(kLogits, {.temperature = 0.5}, 16.1 / 22), 0);
  EXPECT_EQ(choose(kLogits, {.temperature = 1e9}, 0.26), 0);
}

TEST(Sampling, TopKLeavesTheRestOut) {
  EXPECT_EQ(choose(kLogits, {.top_k = 2}, 0.999), 0);
  EXPECT_EQ(choose(kLogits, {.top_k = 1}, 0.999), 2);
  EXPECT_EQ(choose(kLogits, {.top_k = 100}, 0.999), 3);
}

TEST(Sampling, TopPKeepsTheFewestThatTogetherHaveIt) {
  EXPECT_EQ(choose(kLogits, {.top_p = 0.5}, 0.999), 2);
  EXPECT_EQ(choose(kLogits, {.top_p = 0.6}, 0.999), 0);
  EXPECT_EQ(choose(kLogits, {.top_p = 1e-9}, 0.999), 2);
}

TEST(Sampling, NeverTakesWhatIsImpossible) {
  const float none = -std::numeric_limits<float>::infinity();
  EXPECT_EQ(choose(std::vector<float>{none, 0, none}, {}, 0.999), 1);
}

TEST(Sampling, RefusesWhatIsNoNumber) {
  EXPECT_THROW(choose(std::vector<float>{0, std::nanf("")}, {}, 0.5), DataError);
  EXPECT_THROW(choose(std::vector<float>{0, std::numeric_limits<float>::infinity()}, {}, 0.5), DataError);
  for (const SamplingOptions& bad :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = std::nan("")},
        SamplingOptions{.top_k = -1}, SamplingOptions{.top_p = 0}, SamplingOptions{.top_p = 1.5}})
    EXPECT_THROW(check(bad), ConfigError);
}

}  // namespace
}  // namespace lockstep::infer
