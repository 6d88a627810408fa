#pragma once

#include <cstdint>

#include "base/simd.h"

namespace lockstep::ops {
inline namespace LOCKSTEP_SIMD {

// Products of matrices that lie in the cache, for attention, where a library call per block of 64 would cost
// about as much as the block. Each element of the result is one chain of fused multiply-adds in ascending
// order of the inner index, so its bits depend neither on the tile nor on the instruction set.

/// The left factor: element (row, inner) is data[row * row_stride + inner * inner_stride]; transposed by
/// swapping both.
struct LeftFactor {
  const float* data;
  int64_t row_stride, inner_stride;
};

// As many sums as registers hold beside a vector of each column, a factor and, with AVX-512, room to load the
// next: enough of them to hide how long a multiply-add takes.
#if defined(__AVX512F__)
inline constexpr int64_t kTileRows = 8, kTileColumns = 2 * kRegisterLanes;
#elif defined(__AVX2__) && defined(__FMA__)
inline constexpr int64_t kTileRows = 6, kTileColumns = 2 * kRegisterLanes;
#else
inline constexpr int64_t kTileRows = 2, kTileColumns = 4 * kRegisterLanes;
#endif

template <int64_t kRows, int64_t kColumns>
void product_tile(LeftFactor left, const float* right, int64_t right_stride, float* result,
                  int64_t result_stride, int64_t inner, bool accumulate) {
  constexpr int64_t kRegisters = kColumns / kRegisterLanes;
  Register sums[kRows][kRegisters];
#pragma GCC unroll 8
  for (int64_t i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int64_t v = 0; v < kRegisters; ++v)
      sums[i][v] =
          accumulate ? load_register(result + i * result_stride + v * kRegisterLanes) : splat_register(0.0f);
  for (int64_t k = 0; k < inner; ++k) {
    Register row[kRegisters];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kRegisters; ++v)
      row[v] = load_register(right + k * right_stride + v * kRegisterLanes);
#pragma GCC unroll 8
    for (int64_t i = 0; i < kRows; ++i) {
      const Register factor = splat_register(left.data[i * left.row_stride + k * left.inner_stride]);
#pragma GCC unroll 4
      for (int64_t v = 0; v < kRegisters; ++v) sums[i][v] = fused(factor, row[v], sums[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int64_t v = 0; v < kRegisters; ++v)
      store_register(result + i * result_stride + v * kRegisterLanes, sums[i][v]);
}

template <int64_t kColumns, int64_t kRows = kTileRows>
void product_rows(int64_t rows, LeftFactor left, const float* right, int64_t right_stride, float* result,
                  int64_t result_stride, int64_t inner, bool accumulate) {
  if (rows == kRows)
    product_tile<kRows, kColumns>(left, right, right_stride, result, result_stride, inner, accumulate);
  else if constexpr (kRows > 1)
    product_rows<kColumns, kRows - 1>(rows, left, right, right_stride, result, result_stride, inner,
                                      accumulate);
}

/// result (+)= left right, for at most kTileRows rows and `columns` (a multiple of kLanes) columns.
inline void tile_product(int64_t rows, int64_t columns, int64_t inner, LeftFactor left, const float* right,
                         int64_t right_stride, float* result, int64_t result_stride, bool accumulate) {
  int64_t c = 0;
  for (; c + kTileColumns <= columns; c += kTileColumns)
    product_rows<kTileColumns>(rows, left, right + c, right_stride, result + c, result_stride, inner,
                               accumulate);
  if constexpr (kTileColumns > kLanes)
    if (c < columns)
      product_rows<kLanes>(rows, left, right + c, right_stride, result + c, result_stride, inner, accumulate);
}

}  // namespace LOCKSTEP_SIMD
}  // namespace lockstep::ops
