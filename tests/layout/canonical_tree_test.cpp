#include "layout/canonical_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace lockstep::layout {
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

TEST(CanonicalTree, NodesWithinARangeMayBeLimited) {
  EXPECT_THAT(nodes_within(8, 0, 8, 4), ElementsAre(TreeNode{0, 4}, TreeNode{4, 8}));
  EXPECT_THAT(nodes_within(7, 0, 7, 3), ElementsAre(TreeNode{0, 2}, TreeNode{2, 4}, TreeNode{4, 7}));
}

/// Nodes that are computed whole have the sums of their leaves.
TEST(CanonicalTree, FoldingNodesGivesTheDefinition) {
  for (int leaves = 1; leaves <= 33; ++leaves)
    for (const int at_once : {1, 2, 3, 4, 7, 33}) {
      const FoldPlan plan = plan_fold(leaves, 0, leaves, at_once);
      std::vector<std::string> slots(static_cast<size_t>(plan.slots));
      std::vector<TreeNode> nodes;
      for (const auto& step : plan.steps) {
        std::string& to = slots.at(static_cast<size_t>(step.slot));
        if (step.kind == FoldStep::Kind::leaf) {
          nodes.push_back(step.node());
          to = canonical(step.node().begin, step.node().end);
        } else {
          to = "(" + to + "+" + slots.at(static_cast<size_t>(step.slot) + 1) + ")";
        }
      }
      EXPECT_EQ(slots[0], canonical(0, leaves)) << leaves << " leaves, " << at_once << " at once";
      EXPECT_EQ(nodes, nodes_within(leaves, 0, leaves, at_once));
    }
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
      EXPECT_EQ(contents[static_cast<size_t>(root)], canonical(0, leaves))
          << leaves << " leaves, " << workers << " workers";
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

TEST(CanonicalTree, WorkersFollowItWhereBothTreesSplitAlike) {
  EXPECT_TRUE(follows_tree(8, {{0, 8}}));
  EXPECT_TRUE(follows_tree(8, {{0, 4}, {4, 8}}));
  EXPECT_TRUE(follows_tree(8, {{0, 2}, {2, 4}, {4, 6}, {6, 8}}));
  EXPECT_TRUE(follows_tree(3, {{0, 1}, {1, 2}, {2, 3}}));
  EXPECT_TRUE(follows_tree(5, {{0, 2}, {2, 4}, {4, 5}}));          // ((01)(23))4
  EXPECT_TRUE(follows_tree(6, {{0, 2}, {2, 4}, {4, 5}, {5, 6}}));  // ((01)(23))(45)
  EXPECT_TRUE(follows_tree(12, {{0, 2}, {2, 4}, {4, 6}, {6, 8}, {8, 10}, {10, 12}}));
  EXPECT_FALSE(follows_tree(8, {{0, 3}, {3, 6}, {6, 8}}));          // 0, 1, 2 are no node
  EXPECT_FALSE(follows_tree(6, {{0, 3}, {3, 6}}));                  // the tree over 6 splits at 4
  EXPECT_FALSE(follows_tree(5, {{0, 2}, {2, 3}, {3, 4}, {4, 5}}));  // workers meet in pairs, 4 comes last
}

/// The tree over parts that stand for the workers, by its definition.
std::string tree_over(const std::vector<std::string>& parts, size_t begin, size_t end) {
  if (end - begin == 1) return parts[begin];
  size_t left = 1;
  while (2 * left < end - begin) left *= 2;
  return "(" + tree_over(parts, begin, begin + left) + "+" + tree_over(parts, begin + left, end) + ")";
}

TEST(CanonicalTree, WorkersFollowItExactlyWhereTheirSumsAreItsSum) {
  int followed = 0;
  for (int leaves = 1; leaves <= 12; ++leaves)
    for (unsigned cuts = 0; cuts < 1u << (leaves - 1); ++cuts) {
      std::vector<TreeNode> ranges{{0, 0}};
      for (int leaf = 0; leaf < leaves; ++leaf) {
        if (leaf > 0 && (cuts >> (leaf - 1) & 1u) != 0) ranges.push_back({leaf, leaf});
        ranges.back().end = leaf + 1;
      }
      std::vector<std::string> sums;
      for (const auto& range : ranges) sums.push_back(canonical(range.begin, range.end));
      const bool same = tree_over(sums, 0, sums.size()) == canonical(0, leaves);
      EXPECT_EQ(follows_tree(leaves, ranges), same) << leaves << " leaves, " << testing::PrintToString(sums);
      followed += same ? 1 : 0;
    }
  EXPECT_GE(followed, 24);
}

}  // namespace
}  // namespace lockstep::layout
