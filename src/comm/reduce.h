#pragma once

#include <cstdint>

#include "comm/communicator.h"

namespace lockstep::comm {

/// into[i] = into[i] op from[i] for float32, float64, int32 (sums of it wrap around), bfloat16
/// and float16 (rounded once).
void reduce_into(void* into, const void* from, int64_t count, DType dtype, ReduceOp op);

}  // namespace lockstep::comm
