#pragma once

#include <cstdint>

#include "lockstep/tensor.h"

namespace lockstep::tensor {

/// Whether a type stores numbers that are computed with in float32: bfloat16 and float16.
constexpr bool is_narrow(DType dtype) { return dtype == DType::bfloat16 || dtype == DType::float16; }

/// `count` elements from one of float32, bfloat16 and float16 to another. Widening is exact; narrowing rounds
/// to nearest, ties to even. REQUIRES: the ranges do not overlap. Throws InternalError for other types.
void convert(void* to, DType to_type, const void* from, DType from_type, int64_t count);

/// Rounds `count` elements to a narrow type with error feedback (error_feedback.h). REQUIRES: the ranges do
/// not overlap. Throws InternalError for other types.
void round_with_feedback(void* to, DType to_type, const float* from, float* residuals, int64_t count);

}  // namespace lockstep::tensor
