#pragma once

#include <cstdint>
#include <span>

#include "model/graph.h"

namespace lockstep::train {

/// Writes initial values of a parameter, its elements from `first` on, with up to `threads` threads. They
/// depend only on (seed, the parameter's name, element), so they are the same on every rank, in every layout
/// and for every number of threads.
void initialize_parameter(const model::Parameter& parameter, uint64_t seed, int64_t first,
                          std::span<float> values, int threads = 1);

}  // namespace lockstep::train
