#pragma once

#include "base/simd.h"
#include "ops/cpu/loops/loops.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

extern const ElementwiseLoops kReluLoops, kGeluLoops, kGeluErfLoops, kSiluLoops, kSigmoidLoops, kTanhLoops;

void relu_backward_of_two(float* to, const float* gradient, const float* other, const float* value,
                          int64_t count);
float sum_of_row(const float* row, int64_t count);
float largest_of_row(const float* row, int64_t count);
float exponential_sum(const float* row, int64_t count, float offset);
void scaled_exponentials(float* to, const float* row, int64_t count, float offset, float factor);
void dropout_factors(const DropoutMask& mask, uint32_t first_group, uint32_t sample, int64_t groups,
                     float* factors);

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
