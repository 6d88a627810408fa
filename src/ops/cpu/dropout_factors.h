#pragma once

#include <cstdint>

#include "ops/elementwise.h"
#include "ops/op.h"

namespace lockstep::ops {

inline DropoutMask make_dropout_mask(float rate, uint32_t op_number, const StepConstants& constants) {
  return DropoutMask::of(rate, op_number, constants.seed, constants.step);
}

/// Factors of `groups` times four elements from element 4 first_group of `sample` on.
inline void dropout_factors(const DropoutMask& mask, uint32_t first_group, uint32_t sample, int64_t groups,
                            float* __restrict factors) {
  const DropoutMask local =
      mask;  // a copy that the stores below cannot change, or the loop is not vectorised
  for (int64_t group = 0; group < groups; ++group) {
    float four[4];
    local.factors(first_group + static_cast<uint32_t>(group), sample, four);
    for (int i = 0; i < 4; ++i) factors[4 * group + i] = four[i];
  }
}

}  // namespace lockstep::ops
