#pragma once

#include "base/simd.h"
#include "ops/cpu/loops/loops.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

extern const LayerNormLoops kLayerNormLoops, kRmsNormLoops;

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
