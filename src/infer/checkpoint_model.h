#pragma once

#include "checkpoint/checkpoint.h"
#include "infer/evaluator.h"

namespace lockstep::infer {

/// Loads a checkpoint's parameters, or their moving averages, and statistics into the evaluator. Throws
/// CheckpointError, which lists every tensor that is missing, left over or of another shape, before anything
/// is written; ConfigError if there are no averages.
void load_parameters(Evaluator& evaluator, const checkpoint::Checkpoint& checkpoint,
                     checkpoint::Weights weights = checkpoint::Weights::parameters);

}  // namespace lockstep::infer
