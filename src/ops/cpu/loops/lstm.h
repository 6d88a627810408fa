#pragma once

#include "base/simd.h"
#include "ops/cpu/loops/loops.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

void lstm_forward(const LstmForward& position);
void lstm_backward(const LstmBackward& position);

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
