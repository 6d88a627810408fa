#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/loops/loops.h"

namespace lockstep::ops {

/// One value per column, repeated for every lane of it.
class LaneValues {
 public:
  LaneValues(const float* per_column, const ColumnLanes& lanes) : data_(per_column) {
    if (lanes.group == 1) return;
    for (int64_t lane = 0; lane < lanes.width; ++lane) repeated_[lane] = per_column[lane % lanes.columns];
    data_ = repeated_;
  }
  LaneValues(const LaneValues&) = delete;
  const float* data() const { return data_; }

 private:
  float repeated_[ColumnLanes::kMaxLanes];
  const float* data_;
};

/// Rows cut into blocks that fit a cache and that threads may share: results of a block go to a place of its
/// own and are folded in the blocks' order, so that the number of threads changes no bit.
struct ColumnBlocks {
  int64_t rows, columns, block_rows;

  ColumnBlocks(int64_t rows_, int64_t columns_)
      : rows(rows_), columns(columns_), block_rows(std::max<int64_t>(32, 16384 / columns_)) {}
  int64_t count() const { return (rows + block_rows - 1) / block_rows; }
  int64_t first_row(int64_t block) const { return block * block_rows; }
  int64_t rows_of(int64_t block) const { return std::min(block_rows, rows - first_row(block)); }
};

/// Calls result(column, sum over the blocks of block_sums[block * stride + column]), added in double
/// precision.
template <class Result>
void fold_blocks(const ColumnBlocks& blocks, const float* block_sums, int64_t stride, const Result& result) {
  constexpr int64_t kChunk = 64;
  for (int64_t begin = 0; begin < blocks.columns; begin += kChunk) {
    const int64_t width = std::min(kChunk, blocks.columns - begin);
    double sums[kChunk] = {};
    for (int64_t block = 0; block < blocks.count(); ++block)
      for (int64_t c = 0; c < width; ++c)
        sums[c] += static_cast<double>(block_sums[block * stride + begin + c]);
    for (int64_t c = 0; c < width; ++c) result(begin + c, sums[c]);
  }
}

}  // namespace lockstep::ops
