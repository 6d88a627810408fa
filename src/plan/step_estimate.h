#pragma once

#include <string>
#include <vector>

#include "compile/compiled_run.h"
#include "layout/pipeline_timeline.h"

namespace lockstep::plan {

/// What the pieces of a model take of a micro-batch's time, with what is computed again: in seconds where the
/// run has a profile; otherwise estimated, in units of floating-point operations.
std::vector<layout::UnitTimes> piece_times(const compile::CompiledRun& run);

/// What a step computes takes, in the units of piece_times(): the micro-batches of the replica that has most
/// of them, through all stages, with their waiting for each other and what is computed again; with a profile
/// the updates of the rank that has most, too. Not in it: sums of gradients, transfers, and, without a
/// profile, that a processor may do less in the same time where micro-batches are small. For comparing
/// layouts of one model on one kind of device.
double estimate_step(const compile::CompiledRun& run);
/// A line that says so, in milliseconds; "" without a profile.
std::string describe_step(const compile::CompiledRun& run);

}  // namespace lockstep::plan
