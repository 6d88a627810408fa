#pragma once

#include "compile/compiled_run.h"

namespace lockstep::plan {

/// What a step computes takes, in units of floating-point operations (model::node_times): the micro-batches
/// of the replica that has most of them, through all stages, with their waiting for each other and what is
/// computed again. Not in it: sums of gradients, transfers, updates, and that a processor may do less in the
/// same time where micro-batches are small. For comparing layouts of one model on one kind of device.
double estimate_step(const compile::CompiledRun& run);

}  // namespace lockstep::plan
