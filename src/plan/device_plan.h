#pragma once

#include <vector>

#include "compile/compiled_run.h"

namespace lockstep::plan {

/// What a rank's programs take of its device: all spaces together, without the host's where the device has
/// memory of its own.
program::MemoryPlan device_plan(const compile::CompiledRun::RankPrograms& programs,
                                device::DeviceKind device);

/// Ranks of which one has the largest plan: all, where they are few; otherwise, of those that differ in
/// nothing but what they own and save, the one of each stage, and the server, that owns most.
std::vector<int> telling_ranks(const layout::Placement& placement);
/// The rank whose plan takes most, of telling_ranks().
struct FullestRank {
  int rank = 0;
  program::MemoryPlan plan;
};
FullestRank fullest_rank(const compile::CompiledRun& run);

}  // namespace lockstep::plan
