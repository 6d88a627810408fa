#pragma once

#include <cstdint>

#include "ops/elementwise.h"
#include "ops/op.h"

namespace lockstep::ops {

inline DropoutMask make_dropout_mask(float rate, uint32_t op_number, const StepConstants& constants) {
  return DropoutMask::of(rate, op_number, constants.seed, constants.step);
}

}  // namespace lockstep::ops
