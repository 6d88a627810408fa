#include "ops/replica_fold.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "layout/canonical_tree.h"

namespace lockstep::parallel {
namespace {

/// Kernels fold virtual replicas as programs fold leaves.
TEST(ReplicaFold, IsThatOfPrograms) {
  for (int count = 1; count <= 70; ++count) {
    std::vector<std::string> of_kernels(static_cast<size_t>(ops::fold_slots(count)));
    ops::fold_replicas(
        count, [&](int leaf, int slot) { of_kernels.at(static_cast<size_t>(slot)) = std::to_string(leaf); },
        [&](int slot) {
          std::string& to = of_kernels.at(static_cast<size_t>(slot));
          to = "(" + to + "+" + of_kernels.at(static_cast<size_t>(slot) + 1) + ")";
        });
    const layout::FoldPlan plan = layout::plan_fold(count, 0, count);
    std::vector<std::string> of_programs(static_cast<size_t>(plan.slots));
    for (const layout::FoldStep& step : plan.steps) {
      std::string& to = of_programs.at(static_cast<size_t>(step.slot));
      if (step.kind == layout::FoldStep::Kind::leaf)
        to = std::to_string(step.leaf);
      else
        to = "(" + to + "+" + of_programs.at(static_cast<size_t>(step.slot) + 1) + ")";
    }
    EXPECT_EQ(of_kernels[0], of_programs[0]) << count;
  }
}

}  // namespace
}  // namespace lockstep::parallel
