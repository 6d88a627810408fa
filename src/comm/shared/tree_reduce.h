#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/communicator.h"

namespace lockstep::comm {

/// result[i] = inputs[0][i] op inputs[1][i] op ... for float32, float64, int32 (sums of it wrap around),
/// bfloat16 and float16 (every node of the tree is rounded), along the canonical tree over the inputs: [0, n)
/// splits at the largest power of two below n, and so on. The bits of an element depend only on its inputs,
/// not on `count` or on addresses; pointers need no alignment. REQUIRES: at least one input; `result` is none
/// of them.
void reduce_along_tree(std::span<const std::byte* const> inputs, std::byte* result, int64_t count,
                       DType dtype, ReduceOp op);

}  // namespace lockstep::comm
