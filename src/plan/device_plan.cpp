#include "plan/device_plan.h"

#include <utility>
#include <vector>

#include "base/index.h"

namespace lockstep::plan {
namespace {

/// Up to so many ranks all are compiled.
constexpr int kFewRanks = 16;
}  // namespace

std::vector<int> telling_ranks(const layout::Placement& placement) {
  std::vector<int> ranks;
  if (placement.ranks() <= kFewRanks) {
    for (int rank = 0; rank < placement.ranks(); ++rank) ranks.push_back(rank);
    return ranks;
  }
  const auto add_largest = [&](int first, int count) {
    int largest = first;
    for (int rank = first; rank < first + count; ++rank)
      if (placement.owned_bytes(rank) > placement.owned_bytes(largest)) largest = rank;
    if (count > 0) ranks.push_back(largest);
  };
  for (int stage = 0; stage < placement.stages(); ++stage)
    add_largest(placement.rank_of(stage, 0), placement.replicas());
  add_largest(placement.workers(), placement.ranks() - placement.workers());
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
  for (const int rank : telling_ranks(run.placement())) {
    if (run.device_of(rank) != run.device()) continue;  // servers beside GPUs have their hosts' memory
    const program::MemoryPlan plan = device_plan(run.compile(rank), run.device());
    if (fullest.rank < 0 || plan.total_bytes > fullest.plan.total_bytes) fullest = {rank, plan};
  }
  return fullest;
}

}  // namespace lockstep::plan
