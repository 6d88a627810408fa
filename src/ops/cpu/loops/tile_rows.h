#pragma once

#include <cstdint>

#include "base/simd.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

/// Rows of a tile of sums, of two registers each, that stays in registers beside two of the panel and a
/// factor.
#if defined(__AVX512F__)
inline constexpr int64_t kTileRows = 12;
#elif defined(__AVX2__) && defined(__FMA__)
inline constexpr int64_t kTileRows = 6;
#else
inline constexpr int64_t kTileRows = 4;
#endif

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
