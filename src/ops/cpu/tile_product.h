#pragma once

#include <cstdint>

#include "base/simd.h"

namespace lockstep::ops {

// Products of matrices that lie in the cache, for attention, where a library call per block of 64 would cost
// about as much as the block. Each element of the result is one chain of fused multiply-adds in ascending
// order of the inner index, so its bits depend neither on the tile nor on the instruction set.

/// The left factor: element (row, inner) is data[row * row_stride + inner * inner_stride]; transposed by
/// swapping both.
struct LeftFactor {
  const float* data;
  int64_t row_stride, inner_stride;
};

namespace detail {

#if defined(__AVX512F__)
inline constexpr int kTileRows = 8;  // 16 accumulators, two right-hand vectors and a factor, of 32 registers
#else
inline constexpr int kTileRows = 3;  // 32-byte registers: 12 accumulators of 16
#endif
inline constexpr int kTileVectors = 2;

template <int kRows, int kVectors>
void product_tile(LeftFactor left, const float* right, int64_t right_stride, float* result,
                  int64_t result_stride, int64_t inner, bool accumulate) {
  Lanes sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v)
      sums[i][v] = accumulate ? load(result + i * result_stride + v * kLanes) : Lanes{};
  for (int64_t k = 0; k < inner; ++k) {
    Lanes row[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) row[v] = load(right + k * right_stride + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const Lanes factor = splat(left.data[i * left.row_stride + k * left.inner_stride]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[i][v] = fused(factor, row[v], sums[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) store(result + i * result_stride + v * kLanes, sums[i][v]);
}

template <int kVectors, int kRows = kTileRows>
void product_rows(int64_t rows, LeftFactor left, const float* right, int64_t right_stride, float* result,
                  int64_t result_stride, int64_t inner, bool accumulate) {
  if (rows == kRows)
    product_tile<kRows, kVectors>(left, right, right_stride, result, result_stride, inner, accumulate);
  else if constexpr (kRows > 1)
    product_rows<kVectors, kRows - 1>(rows, left, right, right_stride, result, result_stride, inner,
                                      accumulate);
}

}  // namespace detail

inline constexpr int64_t kTileRows = detail::kTileRows;

/// result (+)= left right, for at most kTileRows rows and `columns` (a multiple of kLanes) columns.
inline void tile_product(int64_t rows, int64_t columns, int64_t inner, LeftFactor left, const float* right,
                         int64_t right_stride, float* result, int64_t result_stride, bool accumulate) {
  constexpr int64_t kStep = detail::kTileVectors * kLanes;
  int64_t c = 0;
  for (; c + kStep <= columns; c += kStep)
    detail::product_rows<detail::kTileVectors>(rows, left, right + c, right_stride, result + c, result_stride,
                                               inner, accumulate);
  if (c < columns)
    detail::product_rows<1>(rows, left, right + c, right_stride, result + c, result_stride, inner,
                            accumulate);
}

}  // namespace lockstep::ops
