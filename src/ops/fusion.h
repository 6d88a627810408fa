#pragma once

#include "ops/op.h"

namespace lockstep::ops {

/// Whether GPUs' kernels of a linear layer can do the work of a GELU behind it, and of one before it
/// (FusedNeighbors). `input` is that of the shape rule, `compute` the type of KernelOptions. Needs no device,
/// so that graphs are planned anywhere.
bool can_fuse_gelu(const Linear& op, const TensorSpec& input, DType compute);

}  // namespace lockstep::ops
