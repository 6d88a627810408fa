#pragma once

#include <cstdint>

#include "base/simd.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

int64_t multiply_adds(int64_t iterations, float* numbers);

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
