#pragma once

#include <cstdint>

#include "base/simd.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

/// The first `count` of so many registers, without a call for each row.
[[gnu::always_inline]] inline void store_columns(float* to, const float* from, int64_t count) {
  for (; count >= kRegisterLanes; count -= kRegisterLanes, to += kRegisterLanes, from += kRegisterLanes)
    store_register(to, load_register(from));
  for (int64_t part = kRegisterLanes / 2; part > 0; part /= 2) {
    if ((count & part) == 0) continue;
    part == 8   ? __builtin_memcpy(to, from, 32)
    : part == 4 ? __builtin_memcpy(to, from, 16)
    : part == 2 ? __builtin_memcpy(to, from, 8)
                : __builtin_memcpy(to, from, 4);
    to += part, from += part;
  }
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
