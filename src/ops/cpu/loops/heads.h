#pragma once

#include "base/simd.h"
#include "ops/cpu/loops/attention_head.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

void attention_forward(const AttentionForward& head);
void attention_backward(const AttentionBackward& head);

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
