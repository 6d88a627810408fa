#pragma once

#include <span>
#include <vector>

#include "compile/compiled_run.h"
#include "plan/program_timeline.h"

namespace lockstep::plan {

/// How a step goes, for looking at: lanes run beside each other, layers take what run.node_times() says, in
/// its unit; what passes over bytes takes model::kOperationsPerByte for each, and a byte to another host
/// kOperationsPerLinkByte. Of a run with a profile operations are translated into its seconds by the ratio of
/// all layers' times. The second of three iterations, so that what is left of the first is in it. `programs`:
/// of all ranks. Throws ConfigError for programs of sessions.
ProgramTimeline sketch_step(const compile::CompiledRun& run, std::span<const program::Program> programs,
                            const std::vector<int>& hosts);
inline constexpr double kOperationsPerLinkByte = 100;

}  // namespace lockstep::plan
