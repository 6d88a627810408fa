#pragma once

#include <cstdint>
#include <span>

#include "model/graph.h"
#include "tensor/part.h"

namespace lockstep::train {

/// Writes initial values of a part of a parameter, packed, with up to `threads` threads. They depend only on
/// (seed, the parameter's name, element), so they are the same on every rank, in every layout and for every
/// number of threads. REQUIRES: values.size() == part.count().
void initialize_parameter(const model::Parameter& parameter, uint64_t seed, const tensor::Part& part,
                          std::span<float> values, int threads = 1);

}  // namespace lockstep::train
