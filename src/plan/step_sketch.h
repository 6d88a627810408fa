#pragma once

#include <span>
#include <vector>

#include "compile/compiled_run.h"
#include "plan/program_timeline.h"

namespace lockstep::plan {

/// A step's timeline for drawings. Lanes run in parallel. Layers take the times of run.node_times(), in its
/// unit. Work on bytes takes model::kOperationsPerByte per byte, and a byte to another host
/// kOperationsPerLinkByte. If the run has a profile, operations are converted to seconds by the ratio of all
/// layers' times. It is the second of three iterations, so that it includes the rest of the first.
/// `programs`: of all ranks. Throws ConfigError for programs of sessions.
ProgramTimeline sketch_step(const compile::CompiledRun& run, std::span<const program::Program> programs,
                            const std::vector<int>& hosts);
inline constexpr double kOperationsPerLinkByte = 100;

}  // namespace lockstep::plan
