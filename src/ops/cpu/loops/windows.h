#pragma once

#include "base/simd.h"

namespace lockstep::ops {

struct WindowProduct;

inline namespace LOCKSTEP_SIMD {

void window_product(const WindowProduct& product);

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
