#pragma once

#include <cstdint>

#include "ops/cpu/parallel.h"

namespace lockstep::ops {

/// sum[i] = a[i] + b[i]; the three do not overlap.
inline void sum_of_two(float* __restrict sum, const float* __restrict a, const float* __restrict b,
                       int64_t count, int threads) {
  constexpr int64_t kPiece = 16384;
  parallel_pieces(threads, count, kPiece, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) sum[i] = a[i] + b[i];
  });
}

}  // namespace lockstep::ops
