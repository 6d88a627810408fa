#pragma once

#include <cstdint>

#include "base/simd.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

void product(int64_t rows, int64_t columns, int64_t inner, const float* left, const float* right,
             float* result);
int64_t multiply_adds(int64_t iterations, float* numbers);

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
