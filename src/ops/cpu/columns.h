#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/cpu/parallel.h"

namespace lockstep::ops {

// Work on the columns of a row-major matrix [rows, columns]. A row of few columns is shorter than a vector
// register, so where `columns` is small several rows are taken as one: column c is then spread over `group`
// lanes.

struct ColumnLanes {
  static constexpr int64_t kMaxLanes = 64;
  int64_t columns, group, width;  // width = columns * group lanes

  explicit ColumnLanes(int64_t columns_)
      : columns(columns_), group(std::max<int64_t>(1, kMaxLanes / columns_)), width(columns_ * group) {}
};

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

/// Calls work(i, lane) for every element i of `rows` rows.
template <class Work>
[[gnu::always_inline]] inline void for_lanes(int64_t rows, const ColumnLanes& lanes, const Work& work) {
  const int64_t count = rows * lanes.columns;
  for (int64_t begin = 0; begin < count; begin += lanes.width) {
    const int64_t width = std::min(lanes.width, count - begin);
    for (int64_t lane = 0; lane < width; ++lane) work(begin + lane, lane);
  }
}

/// sums[lane] = sum of term(i, lane) over the elements i of the lane, four rows at a time.
template <class Term>
[[gnu::always_inline]] inline void sum_lanes(int64_t rows, const ColumnLanes& lanes, float* __restrict sums,
                                             const Term& term) {
  const int64_t width = lanes.width, count = rows * lanes.columns;
  std::fill(sums, sums + width, 0.0f);
  int64_t begin = 0;
  for (; begin + 4 * width <= count; begin += 4 * width)
    for (int64_t lane = 0; lane < width; ++lane) {
      const int64_t i = begin + lane;
      sums[lane] +=
          (term(i, lane) + term(i + width, lane)) + (term(i + 2 * width, lane) + term(i + 3 * width, lane));
    }
  for (; begin < count; begin += width) {
    const int64_t rest = std::min(width, count - begin);
    for (int64_t lane = 0; lane < rest; ++lane) sums[lane] += term(begin + lane, lane);
  }
}

/// sums[column] = sum of term(i, lane) over the rows, in an order that depends on the shape alone.
template <class Term>
[[gnu::always_inline]] inline void sum_columns(int64_t rows, const ColumnLanes& lanes, float* __restrict sums,
                                               const Term& term) {
  if (lanes.group == 1) {
    sum_lanes(rows, lanes, sums, term);
    return;
  }
  float lane_sums[ColumnLanes::kMaxLanes];
  sum_lanes(rows, lanes, lane_sums, term);
  std::copy(lane_sums, lane_sums + lanes.columns, sums);
  for (int64_t lane = lanes.columns; lane < lanes.width; ++lane)
    sums[lane % lanes.columns] += lane_sums[lane];
}

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
