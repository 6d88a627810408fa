#pragma once

#include "run/step_kernels.h"

namespace lockstep::run {

/// StepKernels::propose and StepKernels::ratios of GPUs.
void launch_propose(const ProposeCall& call, device::Stream& stream);
void launch_ratios(const RatiosCall& call, device::Stream& stream);

}  // namespace lockstep::run
