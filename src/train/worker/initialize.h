#pragma once

#include <cstdint>

#include "model/graph.h"

namespace lockstep::train {

/// Writes a parameter's first values, on up to `threads` threads. They depend on (seed, the parameter's name,
/// element) alone: the same on every rank, in every layout and for every number of threads.
void initialize_parameter(const model::Parameter& parameter, uint64_t seed, float* values, int threads = 1);

}  // namespace lockstep::train
