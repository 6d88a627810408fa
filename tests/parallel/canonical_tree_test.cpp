#include "parallel/canonical_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace lockstep {
namespace {

using testing::ElementsAre;

/// The tree over [begin, end) as text, by the definition itself.
std::string canonical(int begin, int end) {
  if (end - begin == 1) return "l" + std::to_string(begin);
  int power = 1;
  while (power * 2 < end - begin) power *= 2;
  return "(" + canonical(begin, begin + power) + "+" + canonical(begin + power, end) + ")";
}

/// Executes a fold plan on text buffers; returns the contents of its result slots.
std::vector<std::string> execute(const FoldPlan& plan) {
  std::vector<std::string> slots(static_cast<size_t>(plan.slots));
  for (const auto& step : plan.steps) {
    const auto slot = static_cast<size_t>(step.slot);
    if (step.kind == FoldStep::Kind::leaf) {
      slots.at(slot) = "l" + std::to_string(step.leaf);
    } else {
      slots.at(slot) = "(" + slots.at(slot) + "+" + slots.at(slot + 1) + ")";
    }
  }
  slots.resize(plan.results.size());
  return slots;
}

TEST(CanonicalTree, SplitsAtTheLargestPowerOfTwoBelow) {
  EXPECT_EQ((TreeNode{0, 2}.split()), 1);
  EXPECT_EQ((TreeNode{0, 3}.split()), 2);
  EXPECT_EQ((TreeNode{0, 4}.split()), 2);
  EXPECT_EQ((TreeNode{0, 5}.split()), 4);
  EXPECT_EQ((TreeNode{0, 12}.split()), 8);
  EXPECT_EQ((TreeNode{8, 12}.split()), 10);
}

TEST(CanonicalTree, NodesWithinARangeAreTheLargestOnes) {
  EXPECT_THAT(nodes_within(8, 0, 8), ElementsAre(TreeNode{0, 8}));
  EXPECT_THAT(nodes_within(8, 0, 3), ElementsAre(TreeNode{0, 2}, TreeNode{2, 3}));
  EXPECT_THAT(nodes_within(8, 3, 6), ElementsAre(TreeNode{3, 4}, TreeNode{4, 6}));
  EXPECT_THAT(nodes_within(5, 4, 5), ElementsAre(TreeNode{4, 5}));
  EXPECT_THAT(nodes_within(5, 2, 2), ElementsAre());
}

TEST(CanonicalTree, FoldingOneWorkersLeavesGivesTheDefinition) {
  for (int leaves = 1; leaves <= 33; ++leaves) {
    const FoldPlan plan = plan_fold(leaves, 0, leaves);
    EXPECT_THAT(execute(plan), ElementsAre(canonical(0, leaves))) << leaves;
    EXPECT_LE(1 << (plan.slots - 1), 2 * leaves) << "more than log2(V) + 1 buffers for " << leaves;
  }
}

TEST(CanonicalTree, LeavesAreTakenInAscendingOrder) {
  const FoldPlan plan = plan_fold(13, 3, 11);
  std::vector<int> order;
  for (const auto& step : plan.steps)
    if (step.kind == FoldStep::Kind::leaf) order.push_back(step.leaf);
  EXPECT_THAT(order, ElementsAre(3, 4, 5, 6, 7, 8, 9, 10));
}

TEST(CanonicalTree, AnyDivisionAmongWorkersGivesTheSameTree) {
  for (int leaves = 1; leaves <= 17; ++leaves)
    for (int workers = 1; workers <= leaves; ++workers) {
      std::vector<TreeNode> parts;
      std::vector<std::string> contents;
      for (int w = 0; w < workers; ++w) {
        const int begin = w * leaves / workers, end = (w + 1) * leaves / workers;
        const FoldPlan plan = plan_fold(leaves, begin, end);
        parts.insert(parts.end(), plan.results.begin(), plan.results.end());
        for (auto& text : execute(plan)) contents.push_back(text);
      }
      const int root = fold_parts(leaves, parts, [&](int a, int b) {
        const auto to = static_cast<size_t>(a), from = static_cast<size_t>(b);
        contents[to] = "(" + contents[to] + "+" + contents[from] + ")";
        return a;
      });
      EXPECT_EQ(contents[static_cast<size_t>(root)], canonical(0, leaves)) << leaves << " leaves, " << workers << " workers";
    }
}

TEST(CanonicalTree, HalvingNeedsSiblingsAtEveryRound) {
  EXPECT_TRUE(folds_by_halving(8, {{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
  EXPECT_TRUE(folds_by_halving(1, {{0, 1}}));
  EXPECT_TRUE(folds_by_halving(3, {{0, 2}, {2, 3}}));           // 3 = 2 + 1
  EXPECT_FALSE(folds_by_halving(6, {{0, 3}, {3, 6}}));          // the tree over 6 splits at 4
  EXPECT_FALSE(folds_by_halving(3, {{0, 1}, {1, 2}, {2, 3}}));  // not a power of two
  EXPECT_FALSE(folds_by_halving(12, {{0, 3}, {3, 6}, {6, 9}, {9, 12}}));
}

}  // namespace
}  // namespace lockstep
