#include "data/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "lockstep/error.h"

namespace lockstep::data {
namespace {

std::vector<int64_t> epoch_of(const SampleOrder& order, int64_t size, int64_t epoch) {
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < size; ++i) samples.push_back(order.sample(epoch * size + i));
  return samples;
}

TEST(SampleOrder, EveryEpochIsAPermutation) {
  for (const int64_t size : {1, 2, 3, 1000, 9000, 65537}) {
    const SampleOrder order(7, size, true);
    for (const int64_t epoch : {int64_t{0}, int64_t{1}, int64_t{5'000'000'000}}) {
      auto samples = epoch_of(order, size, epoch);
      std::sort(samples.begin(), samples.end());
      for (int64_t i = 0; i < size; ++i)
        ASSERT_EQ(samples[static_cast<size_t>(i)], i) << size << " " << epoch;
    }
  }
}

TEST(SampleOrder, EpochsAndSeedsDiffer) {
  const auto base = epoch_of(SampleOrder(1, 1000, true), 1000, 0);
  const auto agreement = [&](const std::vector<int64_t>& other) {
    int64_t equal = 0;
    for (size_t i = 0; i < base.size(); ++i) equal += base[i] == other[i];
    return equal;
  };
  // Two random permutations agree in one place on average; more than 10 has probability 1e-8.
  EXPECT_LE(agreement(epoch_of(SampleOrder(1, 1000, true), 1000, 1)), 10);
  EXPECT_LE(agreement(epoch_of(SampleOrder(2, 1000, true), 1000, 0)), 10);
  EXPECT_LE(agreement(epoch_of(SampleOrder(1, 1000, false), 1000, 0)), 10);
  EXPECT_EQ(agreement(epoch_of(SampleOrder(1, 1000, true), 1000, 0)), 1000);
}

TEST(SampleOrder, SmallPermutationsAreEquallyLikely) {
  const SampleOrder order(3, 4, true);
  std::map<std::vector<int64_t>, int> seen;
  for (int64_t epoch = 0; epoch < 24'000; ++epoch) ++seen[epoch_of(order, 4, epoch)];
  ASSERT_EQ(seen.size(), 24u);
  double chi_squared = 0;
  for (const auto& [permutation, count] : seen) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_squared, 60) << "23 degrees of freedom exceed 60 with probability 4e-5";
}

TEST(SampleOrder, EverySampleIsEquallyLikelyEverywhere) {
  const SampleOrder order(5, 1000, true);
  std::array<std::array<int, 10>, 10> counts{};  // tenth of the epoch by tenth of the data set
  for (int64_t position = 0; position < 1'000'000; ++position)
    ++counts[static_cast<size_t>(position % 1000 / 100)][static_cast<size_t>(order.sample(position) / 100)];
  for (const auto& row : counts)
    for (const int count : row) EXPECT_NEAR(count, 10'000, 500);  // more than five deviations of a binomial
}

TEST(SampleOrder, NeighboursDoNotStayTogether) {
  const SampleOrder order(9, 9000, true);
  int together = 0;
  for (int64_t i = 0; i + 1 < 9000; ++i) together += std::abs(order.sample(i) - order.sample(i + 1)) == 1;
  EXPECT_LE(together, 12);  // two on average
}

TEST(SampleOrder, WithoutShufflingItIsFileOrderForEver) {
  const SampleOrder order(1, 3, false);
  for (int64_t position = 0; position < 9; ++position) EXPECT_EQ(order.sample(position), position % 3);
}

TEST(SampleOrder, OncePadsBehindTheEnd) {
  const auto order = SampleOrder::once(2);
  EXPECT_EQ(order.sample(0), 0);
  EXPECT_EQ(order.sample(1), 1);
  EXPECT_EQ(order.sample(2), SampleOrder::kPadding);
  EXPECT_EQ(order.sample(1'000'000), SampleOrder::kPadding);
}

TEST(SampleOrder, RefusesAnEmptyDataSet) { EXPECT_THROW(SampleOrder(1, 0, true), ConfigError); }

}  // namespace
}  // namespace lockstep::data
