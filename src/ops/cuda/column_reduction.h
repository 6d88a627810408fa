#pragma once

#include <algorithm>
#include <cmath>

#include "ops/cuda/floats.h"

namespace lockstep::ops {

// Work on the columns of a row-major matrix [rows, columns]: threads keep to their columns and go down the
// rows, so that what belongs to a column stays in registers. Reductions over rows take two kernels: blocks
// leave a partial result for each column in workspace, and fold_columns joins those. Their order depends on
// the shape and the element type alone.

inline constexpr int kColumnThreads = 256;

/// How the matrix is cut: `tiles` blocks side by side, `row_blocks` below each other. A block's threads are
/// `lanes` wide, each with a pack of columns, and `row_lanes` high; threads beyond lanes * row_lanes have
/// nothing to do.
struct ColumnGrid {
  int64_t rows = 0, columns = 0, rows_per_block = 0;
  int tiles = 0, row_blocks = 0, lanes = 0, row_lanes = 0;

  /// `rows_per_block_`: 0 for as many as make enough blocks.
  ColumnGrid(int64_t rows_, int64_t columns_, int pack, int64_t rows_per_block_ = 0)
      : rows(rows_), columns(columns_), rows_per_block(rows_per_block_) {
    constexpr int64_t kMostLanes = 32;     // a warp reads up to 512 bytes side by side
    constexpr int64_t kBlocks = 512;       // about four for each multiprocessor of a large GPU
    constexpr int64_t kRowsPerThread = 4;  // at least, or partial results weigh too much
    const int64_t packs = columns / pack;
    tiles = static_cast<int>((packs + kMostLanes - 1) / kMostLanes);
    lanes = static_cast<int>((packs + tiles - 1) / tiles);
    row_lanes = kColumnThreads / lanes;
    if (rows_per_block == 0) {
      const int64_t wanted = std::max<int64_t>(1, kBlocks / tiles);
      const int64_t least = std::max(kRowsPerThread * row_lanes, (rows + wanted - 1) / wanted);
      rows_per_block = (least + row_lanes - 1) / row_lanes * row_lanes;
    }
    row_blocks = static_cast<int>((rows + rows_per_block - 1) / rows_per_block);
  }

  device::Grid grid(size_t shared_bytes_per_thread = 0) const {
    return {.blocks = dim3(static_cast<unsigned>(row_blocks), static_cast<unsigned>(tiles)),
            .threads = kColumnThreads,
            .shared_bytes = kColumnThreads * shared_bytes_per_thread};
  }
};

/// Where a thread of such a grid stands.
template <int N>
struct ColumnPlace {
  int64_t column, first_row, end_row;
  int row_lane;
  bool works;  // has columns of its own

  __device__ explicit ColumnPlace(const ColumnGrid& g) {
    const int thread = static_cast<int>(threadIdx.x);
    row_lane = thread / g.lanes;
    column = (static_cast<int64_t>(blockIdx.y) * g.lanes + thread % g.lanes) * N;
    first_row = blockIdx.x * g.rows_per_block + row_lane;
    const int64_t end = (blockIdx.x + int64_t{1}) * g.rows_per_block;
    end_row = end < g.rows ? end : g.rows;
    works = row_lane < g.row_lanes && column < g.columns;
  }
};

/// Calls use(place of the first of N elements in the matrix, their packs in each of the matrices `from`) for
/// the thread's rows in order. Several rows are loaded before the first is used, so that enough bytes are
/// under way.
template <int N, int kCount, class T, class Use>
__device__ inline void for_column_rows(const ColumnGrid& g, const ColumnPlace<N>& at,
                                       const T* const (&from)[kCount], const Use& use) {
  if (!at.works) return;
  constexpr int kAhead = 4;
  for (int64_t first = at.first_row; first < at.end_row; first += kAhead * g.row_lanes) {
    device::Pack<T, N> packs[kAhead][kCount];
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (const int64_t row = first + k * g.row_lanes; row < at.end_row) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) packs[k][i] = load_pack<N>(from[i] + row * g.columns + at.column);
      }
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (const int64_t row = first + k * g.row_lanes; row < at.end_row)
        use(row * g.columns + at.column, packs[k]);
  }
}

/// Sums of two terms of a column.
template <class Float>
struct SumPair {
  using Wide = SumPair<double>;
  Float first = 0, second = 0;

  template <class Other>
  __device__ void join(const SumPair<Other>& other) {
    first += static_cast<Float>(other.first);
    second += static_cast<Float>(other.second);
  }
};

/// Count, mean and summed squared deviations from it.
template <class Float>
struct Moments {
  using Wide = Moments<double>;
  Float count = 0, mean = 0, squares = 0;

  /// Welford, "Note on a method for calculating corrected sums of squares and products", 1962; the caller
  /// counts, and `share` is 1 / the new count.
  __device__ void add(Float value, Float share) {
    const Float difference = value - mean;
    mean = std::fma(difference, share, mean);
    squares = std::fma(difference, value - mean, squares);
  }
  /// Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
  /// 1979.
  template <class Other>
  __device__ void join(const Moments<Other>& other) {
    if (!(other.count > 0)) return;
    const Float added = static_cast<Float>(other.count), total = count + added;
    const Float difference = static_cast<Float>(other.mean) - mean, share = added / total;
    mean = std::fma(difference, share, mean);
    squares += std::fma(difference * difference * count, share, static_cast<Float>(other.squares));
    count = total;
  }
};

/// Joins the values of `row_lanes` threads one below the other, `lanes` apart, in halves; those of row lane 0
/// get the results. All threads of the block call it. `shared`: N values for each of the block's `threads`.
template <int N, class Value>
__device__ inline void join_row_lanes(int lanes, int row_lanes, int threads, Value (&values)[N],
                                      Value* shared) {
  const int thread = static_cast<int>(threadIdx.x), row_lane = thread / lanes;
#pragma unroll
  for (int i = 0; i < N; ++i) shared[i * threads + thread] = values[i];
  for (int height = row_lanes; height > 1;) {
    const int half = (height + 1) / 2;
    __syncthreads();
    if (row_lane < height - half) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        values[i].join(shared[i * threads + thread + half * lanes]);
        shared[i * threads + thread] = values[i];
      }
    }
    height = half;
  }
}

/// The end of a reduction's first kernel: what the block's threads found becomes its partial results,
/// [row_blocks, columns]. The block's dynamic shared memory has N values for each thread.
template <int N, class Value>
__device__ inline void store_partials(const ColumnGrid& g, const ColumnPlace<N>& at, Value (&values)[N],
                                      Value* partials) {
  join_row_lanes(g.lanes, g.row_lanes, kColumnThreads, values, device::dynamic_shared<Value>());
  if (at.row_lane != 0 || !at.works) return;
#pragma unroll
  for (int i = 0; i < N; ++i) partials[blockIdx.x * g.columns + at.column + i] = values[i];
}

inline constexpr int kFoldLanes = 32, kFoldRowLanes = 32, kFoldThreads = kFoldLanes * kFoldRowLanes;

/// finish(column, its partial results joined in double precision) for every column of matrix blockIdx.y.
/// Reads the partial results once; they were written just before and are still in the GPU's cache.
template <class Partial, class Finish>
__global__ void __launch_bounds__(kFoldThreads)
    fold_columns_kernel(const Partial* partials, int count, int64_t columns, Finish finish) {
  using Wide = typename Partial::Wide;
  const int lane = static_cast<int>(threadIdx.x) % kFoldLanes,
            row_lane = static_cast<int>(threadIdx.x) / kFoldLanes;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kFoldLanes + lane;
  partials += static_cast<int64_t>(blockIdx.y) * count * columns;
  Wide values[1];
  if (column < columns) {
#pragma unroll 4
    for (int i = row_lane; i < count; i += kFoldRowLanes) values[0].join(partials[i * columns + column]);
  }
  join_row_lanes(kFoldLanes, kFoldRowLanes, kFoldThreads, values, device::dynamic_shared<Wide>());
  if (row_lane == 0 && column < columns) finish(column, values[0]);
}

template <class Partial, class Finish>
void fold_columns(device::Stream& stream, const Partial* partials, int count, int64_t columns,
                  const Finish& finish, int matrices = 1) {
  device::launch(
      stream,
      {.blocks = dim3(device::blocks_for(columns, kFoldLanes, columns), static_cast<unsigned>(matrices)),
       .threads = kFoldThreads,
       .shared_bytes = kFoldThreads * sizeof(typename Partial::Wide)},
      fold_columns_kernel<Partial, Finish>, partials, count, columns, finish);
}

}  // namespace lockstep::ops
