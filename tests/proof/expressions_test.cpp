#include "proof/expressions.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep::proof {
namespace {

using Atom = Expressions::Atom;

/// The micro-batches (leaf, number within it), accumulated one after the other.
int chain(Expressions& expressions, const std::vector<std::pair<int, int>>& micro_batches) {
  int expression = Expressions::kNothing;
  for (const auto& [leaf, number] : micro_batches)
    expression = expressions.chain(expression, {0, 0, leaf, number});
  return expression;
}

TEST(Expressions, NameALeafByItsNumberWhereItIsComplete) {
  Expressions e(2, 3);
  EXPECT_EQ(e.text(chain(e, {{1, 0}, {1, 1}, {1, 2}}), 0, 1), "l1");
  EXPECT_EQ(e.text(chain(e, {{1, 0}, {1, 2}}), 0, 1), "l1[m0,m2]");
  EXPECT_EQ(e.text(chain(e, {{1, 0}, {1, 2}, {1, 1}}), 0, 1), "l1[m0,m2,m1]");
}

TEST(Expressions, TellRunsOfAChainInTheOrderInWhichTheyWereAccumulated) {
  Expressions e(2, 2);
  const int mixed = chain(e, {{0, 0}, {0, 1}, {1, 0}, {0, 0}});
  EXPECT_EQ(e.text(mixed, 0, 1), "l0 then l1[m0] then l0[m0]");
  EXPECT_EQ(e.text(mixed, 1, 1),
            "l0 of an earlier step then l1[m0] of an earlier step then l0[m0] of an earlier step");
  const int sum = e.sum(chain(e, {{0, 0}}), chain(e, {{1, 0}}));
  EXPECT_EQ(e.text(e.chain(sum, {0, 0, 1, 1}), 0, 1), "l0[m0]+l1[m0] then l1[m1]");
}

TEST(Expressions, SumUpTheirMicroBatchesAscendingWithRepetitions) {
  Expressions e(2, 2);
  const int a = chain(e, {{1, 0}, {0, 1}}), b = chain(e, {{0, 1}});
  const std::vector<Atom> expected{{0, 0, 0, 1}, {0, 0, 0, 1}, {0, 0, 0, 1}, {0, 0, 1, 0}};
  EXPECT_EQ(e.atoms(e.reduction({e.sum(a, b), b})), expected);
  EXPECT_TRUE(e.atoms(Expressions::kOther).empty());
}

TEST(Expressions, AreCompleteWithEveryMicroBatchOnce) {
  Expressions e(2, 2);
  const int first = chain(e, {{0, 0}, {0, 1}}), second = chain(e, {{1, 1}, {1, 0}});
  EXPECT_TRUE(e.is_complete(e.sum(first, second), 0, 1));
  EXPECT_FALSE(e.is_complete(e.sum(first, second), 1, 1));
  EXPECT_FALSE(e.is_complete(e.sum(first, second), 0, 2));
  EXPECT_FALSE(e.is_complete(first, 0, 1));
  EXPECT_FALSE(e.is_complete(e.sum(e.sum(first, second), first), 0, 1));
}

TEST(Expressions, MayBeChainsAsLongAsProgramsAre) {
  // A recursion as deep as the chain would overflow the stack, a list for every part of it would fill the
  // memory.
  constexpr int kMicroBatches = 50'000;
  Expressions e(2, kMicroBatches);
  std::vector<std::pair<int, int>> alternating;
  for (int m = 0; m < kMicroBatches; ++m) alternating.insert(alternating.end(), {{0, m}, {1, m}});
  const int both = chain(e, alternating);
  EXPECT_TRUE(e.is_complete(both, 0, 1));
  const std::string text = e.text(both, 0, 1);
  EXPECT_EQ(text.substr(0, 41), "l0[m0] then l1[m0] then l0[m1] then l1[m1");
  EXPECT_EQ(text.size(), 203u);
  EXPECT_TRUE(text.ends_with("..."));
  EXPECT_EQ(e.text(e.complete_leaf(0, 0, 1), 0, 1), "l1");
}

TEST(Expressions, MayBeSumsOfSumsAsDeepAsProgramsAreLong) {
  constexpr int kMicroBatches = 20'000;
  Expressions e(1, kMicroBatches);
  int sum = chain(e, {{0, 0}});
  for (int m = 1; m < kMicroBatches; ++m) sum = e.sum(sum, chain(e, {{0, m}}));
  EXPECT_TRUE(e.is_complete(sum, 0, 1));
  EXPECT_EQ(e.text(sum, 0, 1).size(), 203u);
}

}  // namespace
}  // namespace lockstep::proof
