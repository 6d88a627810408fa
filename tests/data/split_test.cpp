#include "data/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "lockstep/error.h"

namespace lockstep::data {
namespace {

std::vector<uint64_t> units(size_t count) {
  std::vector<uint64_t> all(count);
  std::iota(all.begin(), all.end(), uint64_t{1} << 40);
  return all;
}

int64_t evaluating(double train_fraction, size_t count) {
  return std::ranges::count(draw_evaluation({.train_fraction = train_fraction}, units(count)), true);
}

TEST(Split, DrawsExactlyTheFraction) {
  EXPECT_EQ(evaluating(0.9, 1000), 100);
  EXPECT_EQ(evaluating(0.7, 10), 3);
  EXPECT_EQ(evaluating(0.9, 9), 0);
  EXPECT_EQ(evaluating(1, 10), 0);
  EXPECT_EQ(evaluating(0, 10), 10);
  EXPECT_EQ(evaluating(0.5, 0), 0);
  EXPECT_THROW(evaluating(1.5, 10), ConfigError);
  EXPECT_THROW(evaluating(-0.5, 10), ConfigError);
}

TEST(Split, IsOfTheSeed) {
  const auto drawn = [](uint64_t seed) {
    return draw_evaluation({.train_fraction = 0.5, .seed = seed}, units(200));
  };
  EXPECT_EQ(drawn(1), drawn(1));
  EXPECT_NE(drawn(1), drawn(2));
}

TEST(Split, DoesNotDependOnTheOrderOfUnits) {
  auto forward = units(100), backward = forward;
  std::ranges::reverse(backward);
  const auto drawn = draw_evaluation({.train_fraction = 0.8}, forward);
  auto from_back = draw_evaluation({.train_fraction = 0.8}, backward);
  std::reverse(from_back.begin(), from_back.end());
  EXPECT_EQ(drawn, from_back);
}

}  // namespace
}  // namespace lockstep::data
