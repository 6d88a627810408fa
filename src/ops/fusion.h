#pragma once

#include "ops/op.h"

namespace lockstep::ops {

/// Whether GPU kernels of a linear layer can do the work of a GELU after it, and of one before it
/// (FusedNeighbors). `input`: the input of the shape rule; `compute`: as in KernelOptions. Needs no device,
/// so that graphs can be planned anywhere.
bool can_fuse_gelu(const Linear& op, const TensorSpec& input, DType compute);

}  // namespace lockstep::ops
