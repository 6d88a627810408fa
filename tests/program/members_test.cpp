#include "program/members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "lockstep/error.h"
#include "program/program.h"

namespace lockstep::program {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string parsed(const std::string& members) {
  const std::string head = "program p rank=0 world_size=4 reduction=fast leaves=1 micro_batches_per_leaf=1\n";
  const Program program = program_from_text(head + "group g " + members + "\n");
  return to_text(program.groups.at(0).members);
}

TEST(Members, AreTheSameRanksHoweverTheyWereStated) {
  EXPECT_EQ(Members::run(3, 4, 2), Members({3, 5, 7, 9}));
  EXPECT_EQ(Members::run(7, 1, 5), Members({7}));
  EXPECT_NE(Members({0, 1, 2}), Members({0, 2, 1}));
  EXPECT_NE(Members({0, 1, 2}), Members::run(0, 4));
  EXPECT_THAT(Members::run(3, 4, 2).list(), ElementsAre(3, 5, 7, 9));
  EXPECT_THAT(Members({2, 0, 1}).list(), ElementsAre(2, 0, 1));
  EXPECT_TRUE(Members().empty());
  EXPECT_EQ(Members(), Members(std::vector<int>{}));
}

/// Against a search in the list, for runs and lists that almost are some.
TEST(Members, KnowThePlaceOfEachRank) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<int> list;
    const int stride = static_cast<int>(random() % 3) + 1;
    for (int rank = static_cast<int>(random() % 4); list.size() < 1 + random() % 6; rank += stride)
      list.push_back(rank);
    if (random() % 2 == 0) std::swap(list[0], list[random() % list.size()]);
    const Members members(list);
    ASSERT_EQ(members.size(), list.size());
    ASSERT_EQ(members.list(), list);
    for (int rank = -2; rank < 25; ++rank) {
      const auto found = std::find(list.begin(), list.end(), rank);
      ASSERT_EQ(members.index_of(rank), found == list.end() ? -1 : static_cast<int>(found - list.begin()));
    }
  }
}

TEST(Members, OfAWorldAreDistinctRanksOfIt) {
  EXPECT_TRUE(Members({1, 0}).are_distinct_below(2));
  EXPECT_TRUE(Members::run(0, 4096).are_distinct_below(4096));
  EXPECT_FALSE(Members::run(0, 4096).are_distinct_below(4095));
  EXPECT_FALSE(Members::run(1, 3, 1 << 30).are_distinct_below(1 << 30));
  EXPECT_FALSE(Members({-1, 0}).are_distinct_below(2));
  EXPECT_FALSE(Members({1, 0, 1}).are_distinct_below(2));
  EXPECT_FALSE(Members({1, 1}).are_distinct_below(2));
  EXPECT_FALSE(Members().are_distinct_below(2));
}

TEST(Members, AreWrittenAsRunsWhereTheseAreLong) {
  EXPECT_EQ(to_text(Members::run(0, 8)), "0 1 2 3 4 5 6 7");
  EXPECT_EQ(to_text(Members::run(0, 9)), "0..8");
  EXPECT_EQ(to_text(Members::run(4, 1024, 2)), "4..2050/2");
  EXPECT_EQ(to_text(Members({8, 7, 6, 5, 4, 3, 2, 1, 0})), "8 7 6 5 4 3 2 1 0");
  EXPECT_EQ(to_text(Members({0, 1, 2, 3, 4, 5, 6, 7, 9})), "0 1 2 3 4 5 6 7 9");
  for (const char* text : {"0..8", "4..2050/2", "8 7 6 5 4 3 2 1 0", "3 1", ""})
    EXPECT_EQ(parsed(text), text);
  EXPECT_EQ(parsed("1..4"), "1 2 3 4");
}

TEST(Members, ThatAreNoRunAreRefused) {
  const auto refused = [](const std::string& text) {
    try {
      parsed(text);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  for (const char* text : {"4..3", "0..5/2", "0..4/0", "0..4/-1", "0..99999999999", "-3..1"})
    EXPECT_THAT(refused(text), HasSubstr("expected FIRST..LAST")) << text;
  EXPECT_THAT(refused("0.4"), HasSubstr("expected '.'"));
  EXPECT_THAT(refused("0 1..4"), HasSubstr("line 2"));
}

}  // namespace
}  // namespace lockstep::program
