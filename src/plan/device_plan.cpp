#include "plan/device_plan.h"

#include <utility>
#include <vector>

#include "base/index.h"

namespace lockstep::plan {
namespace {

/// Up to so many ranks all are compiled.
constexpr int kFewRanks = 16;
}  // namespace

std::vector<int> telling_ranks(const layout::Ownership& ownership) {
  std::vector<int> ranks;
  if (ownership.ranks() <= kFewRanks) {
    for (int rank = 0; rank < ownership.ranks(); ++rank) ranks.push_back(rank);
    return ranks;
  }
  const auto add_largest = [&](int first, int count) {
    int largest = first;
    for (int rank = first; rank < first + count; ++rank)
      if (ownership.owned_bytes(rank) > ownership.owned_bytes(largest)) largest = rank;
    if (count > 0) ranks.push_back(largest);
  };
  for (int stage = 0; stage < ownership.stages(); ++stage)
    add_largest(ownership.rank_of(stage, 0), ownership.replicas());
  add_largest(ownership.workers(), ownership.ranks() - ownership.workers());
  return ranks;
}

program::MemoryPlan device_plan(const compile::CompiledRun::RankPrograms& programs,
                                device::DeviceKind device) {
  program::MemoryPlan plan = program::combine_plans(programs.plans());
  if (device != device::DeviceKind::cuda) return plan;
  const int64_t of_host = std::exchange(nth(plan.space_bytes, program::Space::host), 0);
  nth(plan.category_bytes, program::Category::staging) -= of_host;
  plan.total_bytes -= of_host;
  return plan;
}

FullestRank fullest_rank(const compile::CompiledRun& run) {
  FullestRank fullest{.rank = -1, .plan = {}};
  for (const int rank : telling_ranks(run.ownership())) {
    if (run.device_of(rank) != run.device()) continue;  // servers beside GPUs have their hosts' memory
    const program::MemoryPlan plan = device_plan(run.compile(rank), run.device());
    if (fullest.rank < 0 || plan.total_bytes > fullest.plan.total_bytes) fullest = {rank, plan};
  }
  return fullest;
}

}  // namespace lockstep::plan
