#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace lockstep::layout {

/// Whether sums over workers may be in any order, or follow the canonical tree and have the same bits on any
/// layout.
enum class Reduction { fast, reproducible };

/// The gradient tree over V leaves: a node over [begin, end) splits at begin + the largest power of two below
/// its length. It depends on V alone, so any number of workers that evaluate it get the same bits.
struct TreeNode {
  int begin = 0, end = 0;
  int size() const { return end - begin; }
  bool is_leaf() const { return size() == 1; }
  int split() const;  ///< REQUIRES: size() >= 2
  TreeNode left() const { return {begin, split()}; }
  TreeNode right() const { return {split(), end}; }
  auto operator<=>(const TreeNode&) const = default;
};

/// The largest nodes of the tree over [0, leaves), of at most `most` leaves each, that lie within [begin,
/// end), ascending. A worker with these leaves can compute them alone.
std::vector<TreeNode> nodes_within(int leaves, int begin, int end,
                                   int most = std::numeric_limits<int>::max());

/// One step of folding leaves [begin, end), taken in ascending order, with a stack of buffers.
struct FoldStep {
  enum class Kind { leaf, add } kind;
  int leaf = -1;   ///< leaf: its gradient is completed in `slot`
  int slot = 0;    ///< add: slot += slot + 1
  int leaves = 1;  ///< leaf: of the node that begins with it and is computed at once
  TreeNode node() const { return {leaf, leaf + leaves}; }
};
struct FoldPlan {
  std::vector<FoldStep> steps;
  std::vector<TreeNode> results;  ///< result i lies in slot i at the end: nodes_within(leaves, begin, end)
  int slots = 0;                  ///< buffers needed, at most log2(leaves) + 1 for each result
};
/// `at_once`: nodes of at most so many leaves are computed whole.
FoldPlan plan_fold(int leaves, int begin, int end, int at_once = 1);

/// Whether workers that own consecutive `ranges` can fold the tree by recursive halving: every range is one
/// node, and ranks r and r ^ 2^k hold sibling nodes in round k. REQUIRES: ranges are consecutive and cover
/// [0, leaves).
bool folds_by_halving(int leaves, const std::vector<TreeNode>& ranges);

/// Whether the tree over workers, each with one of the consecutive `ranges`, is the upper part of the tree
/// over the leaves: every range is one node, and the two trees split at the same places. Then only a sum
/// along the workers' tree remains.
bool follows_tree(int leaves, const std::vector<TreeNode>& ranges);

/// Evaluates the tree over [0, leaves) from its nodes `parts`, which cover [0, leaves) and ascend. Calls
/// combine(a, b) with the indices of two parts to add; it stores the sum at one of them and returns that
/// index. Returns the index of the whole sum.
int fold_parts(int leaves, const std::vector<TreeNode>& parts, const std::function<int(int, int)>& combine);

/// The same for parts that need not cover the tree. Returns the indices of the largest nodes that the parts
/// make up, ascending.
std::vector<int> fold_within(int leaves, const std::vector<TreeNode>& parts,
                             const std::function<int(int, int)>& combine);

}  // namespace lockstep::layout
