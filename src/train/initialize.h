#pragma once

#include <cstdint>

#include "model/graph.h"

namespace lockstep {

/// Writes a parameter's first values. They depend on (seed, the parameter's name, element) alone: the same on every
/// rank and in every layout.
void initialize_parameter(const Parameter& parameter, uint64_t seed, float* values);

}  // namespace lockstep
