#include "tokenizer/merges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace lockstep::tokenizer {
namespace {

using ::testing::ElementsAre;

std::vector<int32_t> applied(const MergeTable& table, std::vector<int32_t> word) {
  table.apply(word);
  return word;
}

TEST(Merges, TakeTheEarliestPairFirst) {
  // a=0 b=1 c=2: "bc" before "ab".
  const MergeTable table({{1, 2, 3}, {0, 1, 4}, {0, 3, 5}});
  EXPECT_THAT(applied(table, {0, 1, 2}), ElementsAre(5));
  EXPECT_THAT(applied(table, {0, 1, 0, 1, 2, 2}), ElementsAre(4, 5, 2));
  EXPECT_THAT(applied(table, {0}), ElementsAre(0));
  EXPECT_THAT(applied(table, {}), ElementsAre());
}

TEST(Merges, GoFromTheLeft) {
  const MergeTable table({{0, 0, 1}});
  EXPECT_THAT(applied(table, {0, 0, 0}), ElementsAre(1, 0));
  EXPECT_THAT(applied(table, std::vector<int32_t>(101, 0)).size(), 51u);
}

TEST(Merges, LeaveWordsAsTheyAreWithoutAny) { EXPECT_THAT(applied(MergeTable(), {3, 4}), ElementsAre(3, 4)); }

/// As the rule is written: all pairs are looked at again for each merge.
std::vector<int32_t> merged_by_the_rule(const std::vector<Merge>& merges, std::vector<int32_t> word) {
  for (;;) {
    for (const auto& merge : merges) {
      for (size_t i = 0; i + 1 < word.size(); ++i)
        if (word[i] == merge.left && word[i + 1] == merge.right) {
          word[i] = merge.merged;
          word.erase(word.begin() + static_cast<std::ptrdiff_t>(i) + 1);
          goto again;
        }
    }
    return word;
  again:;
  }
}

TEST(Merges, OfShortAndLongWordsFollowTheRule) {
  std::mt19937 random(5);
  for (int round = 0; round < 30; ++round) {
    std::vector<Merge> merges;
    std::vector<std::pair<int32_t, int32_t>> pairs;
    for (int32_t merged = 3; merged < 20; ++merged) {
      const Merge merge{static_cast<int32_t>(random() % static_cast<uint32_t>(merged)),
                        static_cast<int32_t>(random() % static_cast<uint32_t>(merged)), merged};
      if (std::ranges::find(pairs, std::pair(merge.left, merge.right)) != pairs.end()) continue;
      pairs.emplace_back(merge.left, merge.right);
      merges.push_back(merge);
    }
    const MergeTable table(merges);
    for (const size_t length : {2u, 7u, 47u, 48u, 49u, 200u}) {
      std::vector<int32_t> word(length);
      for (auto& token : word) token = static_cast<int32_t>(random() % 3);
      EXPECT_EQ(applied(table, word), merged_by_the_rule(merges, word));
    }
  }
}

}  // namespace
}  // namespace lockstep::tokenizer
