#pragma once

#include "ops/op.h"

namespace lockstep::ops {

/// Whether GPU kernels of a linear layer know the activation: cuBLASLt has the tanh approximation alone.
inline bool is_fusible_gelu(const Op& op) {
  const auto* gelu = std::get_if<Gelu>(&op);
  return gelu != nullptr && gelu->kind == GeluKind::tanh;
}

/// Whether GPU kernels of a linear layer can do the work of a GELU after it, and of one before it
/// (FusedNeighbors). `input`: the input of the shape rule; `compute`: as in KernelOptions. Needs no device,
/// so that graphs can be planned anywhere.
bool can_fuse_gelu(const Linear& op, const TensorSpec& input, DType compute);

}  // namespace lockstep::ops
