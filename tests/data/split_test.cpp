#include "data/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace lockstep::data {
namespace {

std::vector<std::string> names(size_t count) {
  std::vector<std::string> all;
  for (size_t i = 0; i < count; ++i) all.push_back("name " + std::to_string(i));
  return all;
}

std::vector<bool> drawn(const std::vector<std::string>& all, const std::vector<int32_t>& labels,
                        double fraction, uint64_t seed = 1) {
  return draw_split(std::vector<std::string_view>(all.begin(), all.end()), labels, fraction, seed);
}

std::ptrdiff_t evaluating(size_t count, double fraction) {
  return std::ranges::count(drawn(names(count), std::vector<int32_t>(count, 0), fraction), true);
}

TEST(Split, DrawsTheFraction) {
  EXPECT_EQ(evaluating(1000, 0.1), 100);
  EXPECT_EQ(evaluating(10, 0.3), 3);
  EXPECT_EQ(evaluating(4, 0.1), 0);
  EXPECT_EQ(evaluating(10, 0), 0);
  EXPECT_EQ(evaluating(10, 1), 10);
  EXPECT_EQ(evaluating(0, 0.5), 0);
}

TEST(Split, DrawsFromEachClass) {
  std::vector<int32_t> labels(100, 0);
  for (size_t i = 0; i < 10; ++i) labels[i * 7] = 1;
  const auto evaluates = drawn(names(100), labels, 0.2);
  std::array<int, 2> counts{};
  for (size_t i = 0; i < labels.size(); ++i) counts[static_cast<size_t>(labels[i])] += evaluates[i] ? 1 : 0;
  EXPECT_THAT(counts, testing::ElementsAre(18, 2));
}

TEST(Split, IsOfSeedAndNamesAlone) {
  auto all = names(200);
  const std::vector<int32_t> labels(200, 0);
  const auto forward = drawn(all, labels, 0.2);
  EXPECT_NE(drawn(all, labels, 0.2, 2), forward);
  std::ranges::reverse(all);
  auto backward = drawn(all, labels, 0.2);
  std::reverse(backward.begin(), backward.end());
  EXPECT_EQ(backward, forward);
}

}  // namespace
}  // namespace lockstep::data
