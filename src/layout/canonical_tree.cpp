#include "layout/canonical_tree.h"

#include <algorithm>
#include <bit>

#include "base/ensure.h"
#include "base/index.h"

namespace lockstep::layout {

int TreeNode::split() const {
  return begin + static_cast<int>(std::bit_floor(static_cast<unsigned>(size() - 1)));
}

std::vector<TreeNode> nodes_within(int leaves, int begin, int end, int most) {
  std::vector<TreeNode> found;
  const std::function<void(TreeNode)> descend = [&](TreeNode node) {
    if (node.end <= begin || node.begin >= end) return;
    if (node.begin >= begin && node.end <= end && node.size() <= most) {
      found.push_back(node);
      return;
    }
    descend(node.left());
    descend(node.right());
  };
  if (leaves > 0) descend({0, leaves});
  return found;
}

FoldPlan plan_fold(int leaves, int begin, int end, int at_once) {
  FoldPlan plan;
  plan.results = nodes_within(leaves, begin, end);
  const std::function<void(TreeNode, int)> evaluate = [&](TreeNode node, int slot) {
    plan.slots = std::max(plan.slots, slot + 1);
    if (node.size() <= at_once) {
      plan.steps.push_back({FoldStep::Kind::leaf, node.begin, slot, node.size()});
      return;
    }
    evaluate(node.left(), slot);
    evaluate(node.right(), slot + 1);
    plan.steps.push_back({FoldStep::Kind::add, -1, slot});
  };
  for (size_t i = 0; i < plan.results.size(); ++i) evaluate(plan.results[i], static_cast<int>(i));
  return plan;
}

bool folds_by_halving(int leaves, const std::vector<TreeNode>& ranges) {
  if (!std::has_single_bit(ranges.size())) return false;
  std::vector<TreeNode> nodes = ranges;
  for (const auto& range : ranges)
    if (nodes_within(leaves, range.begin, range.end) != std::vector<TreeNode>{range}) return false;
  while (nodes.size() > 1) {
    std::vector<TreeNode> parents;
    for (size_t i = 0; i < nodes.size(); i += 2) {
      const TreeNode parent{nodes[i].begin, nodes[i + 1].end};
      if (parent.left() != nodes[i] ||
          nodes_within(leaves, parent.begin, parent.end) != std::vector<TreeNode>{parent})
        return false;
      parents.push_back(parent);
    }
    nodes = std::move(parents);
  }
  return true;
}

bool follows_tree(int leaves, const std::vector<TreeNode>& ranges) {
  const std::function<bool(TreeNode, TreeNode)> follows = [&](TreeNode workers, TreeNode node) -> bool {
    if (workers.is_leaf()) return nth(ranges, workers.begin) == node;
    return !node.is_leaf() && follows(workers.left(), node.left()) && follows(workers.right(), node.right());
  };
  return !ranges.empty() && follows({0, static_cast<int>(ranges.size())}, {0, leaves});
}

std::vector<int> fold_within(int leaves, const std::vector<TreeNode>& parts,
                             const std::function<int(int, int)>& combine) {
  struct Folded {
    std::vector<int> parts;
    bool complete;
  };
  const std::function<Folded(TreeNode)> evaluate = [&](TreeNode node) -> Folded {
    const auto part = std::find(parts.begin(), parts.end(), node);
    if (part != parts.end()) return {{static_cast<int>(part - parts.begin())}, true};
    if (node.is_leaf()) return {{}, false};
    Folded left = evaluate(node.left());
    const Folded right = evaluate(node.right());
    if (left.complete && right.complete) return {{combine(left.parts[0], right.parts[0])}, true};
    left.parts.insert(left.parts.end(), right.parts.begin(), right.parts.end());
    return {std::move(left.parts), false};
  };
  return evaluate({0, leaves}).parts;
}

int fold_parts(int leaves, const std::vector<TreeNode>& parts, const std::function<int(int, int)>& combine) {
  const std::vector<int> left = fold_within(leaves, parts, combine);
  ensure(left.size() == 1, "the parts of a gradient tree must cover it");
  return left[0];
}

}  // namespace lockstep::layout
