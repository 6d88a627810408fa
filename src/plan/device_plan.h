#pragma once

#include <vector>

#include "compile/compiled_run.h"

namespace lockstep::plan {

/// Device memory of a rank's programs: all spaces together, without the host's space if the device has its
/// own memory.
program::MemoryPlan device_plan(const compile::CompiledRun::RankPrograms& programs,
                                device::DeviceKind device);

/// Ranks of which one has the largest plan: all ranks if there are few. Otherwise, among ranks that differ
/// only in what they own and save, the rank of each stage, and the server, that own most.
std::vector<int> telling_ranks(const layout::Ownership& ownership);
/// The rank with the largest plan, among telling_ranks().
struct FullestRank {
  int rank = 0;
  program::MemoryPlan plan;
};
FullestRank fullest_rank(const compile::CompiledRun& run);

}  // namespace lockstep::plan
