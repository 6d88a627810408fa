#pragma once

#include <string>
#include <vector>

#include "compile/compiled_run.h"
#include "layout/pipeline_timeline.h"

namespace lockstep::plan {

/// Times of the model's pieces per micro-batch, with recomputation: in seconds if the run has a profile;
/// otherwise estimated, in floating-point operations.
std::vector<layout::UnitTimes> piece_times(const compile::CompiledRun& run);

/// The computing time of a step, in the units of piece_times(). It includes the micro-batches of the replica
/// that has most, through all stages, with their waiting for each other and recomputation; with a profile
/// also the updates of the rank that has most. It excludes sums of gradients and transfers. Without a profile
/// it ignores that small micro-batches may be less efficient. For comparing layouts of one model on one kind
/// of device.
double estimate_step(const compile::CompiledRun& run);
/// A line with this time in milliseconds; "" without a profile.
std::string describe_step(const compile::CompiledRun& run);

}  // namespace lockstep::plan
