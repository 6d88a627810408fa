#pragma once

#include <string>

#include "train/worker.h"

namespace lockstep {

/// COLLECTIVE: replays the step described by `inputs`, with unchanged parameters, and looks at what every kernel makes.
/// Returns one line naming the first tensor that is not finite: op, tensor, micro-batch, rank, or the parameter that
/// was so before the step. `world` carries the ranks' findings.
std::string locate_nonfinite(Worker& worker, Communicator& world, const StepInputs& inputs);

}  // namespace lockstep
