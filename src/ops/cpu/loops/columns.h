#pragma once

#include "base/simd.h"
#include "ops/cpu/loops/loops.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

extern const ColumnLoops kColumnLoops;

void add_rows(float* sums, const float* rows, int64_t count, int64_t columns);

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
