#pragma once

#include "ops/cuda/column_sum.h"
#include "ops/cuda/floats.h"

namespace lockstep::ops {

// The kernel of ColumnSum, for any source of the matrix: memory, or a kernel that writes it in the same pass.

inline constexpr unsigned kColumnSumThreads = 256;

/// The kernel's blocks: `lanes` threads side by side, each with a pack of columns; the block's others take
/// further rows.
struct ColumnTiling {
  unsigned lanes = 1, tiles = 1;

  ColumnTiling(int64_t columns, int64_t pack) {
    const int64_t packs = (columns + pack - 1) / pack;
    while (lanes < device::kWarpSize && lanes < packs) lanes *= 2;
    tiles = device::blocks_for(packs, lanes, INT32_MAX);
  }
  unsigned row_lanes() const { return kColumnSumThreads / lanes; }
};

/// A matrix in memory.
template <class T, int N>
struct StoredColumns {
  const T* x;
  __device__ device::Pack<T, N> operator()(int64_t at) const { return load_pack<N>(x + at); }
};

/// Part y of the rows of matrix z into row z * parts + y of `sums`. `source(at)` gives the N elements of the
/// matrices from the `at`th on; each is asked for once. Partial sums are 1/16 of the matrix at the most.
template <int N, class Source>
__global__ void __launch_bounds__(kColumnSumThreads)
    column_sum_kernel(const Source source, int64_t rows, int64_t columns, int64_t rows_per_part, float* sums,
                      bool accumulate) {
  float* shared = device::dynamic_shared<float>();  // [row lanes][lanes * N]
  const int lanes = static_cast<int>(blockDim.x), row_lanes = static_cast<int>(blockDim.y);
  const int lane = static_cast<int>(threadIdx.x), row_lane = static_cast<int>(threadIdx.y);
  const int64_t matrix = int64_t{blockIdx.z} * rows * columns;
  const int64_t tile = int64_t{blockIdx.x} * lanes * N, column = tile + lane * N;
  const int64_t begin = int64_t{blockIdx.y} * rows_per_part;
  const int64_t end = begin + rows_per_part < rows ? begin + rows_per_part : rows;

  float sum[N] = {};
  if (column < columns) {
#pragma unroll 4
    for (int64_t row = begin + row_lane; row < end; row += row_lanes) {
      const auto pack = source(matrix + row * columns + column);
      for (int i = 0; i < N; ++i) sum[i] += static_cast<float>(pack.value[i]);
    }
  }
  for (int i = 0; i < N; ++i) shared[(row_lane * lanes + lane) * N + i] = sum[i];
  __syncthreads();

  const int width = lanes * N;
  for (int c = row_lane * lanes + lane; c < width && tile + c < columns; c += lanes * row_lanes) {
    float total = 0;
    for (int r = 0; r < row_lanes; ++r) total += shared[r * width + c];
    float& to = sums[(int64_t{blockIdx.z} * gridDim.y + blockIdx.y) * columns + tile + c];
    to = accumulate ? to + total : total;
  }
}

template <int N, class Source>
void launch_column_sum(const Source& source, int matrices, int64_t rows, int64_t columns, int64_t parts,
                       float* sums, bool accumulate, device::Stream& stream) {
  const ColumnTiling tiling(columns, N);
  device::launch(stream,
                 {.blocks = dim3(tiling.tiles, static_cast<unsigned>(parts), static_cast<unsigned>(matrices)),
                  .threads = dim3(tiling.lanes, tiling.row_lanes()),
                  .shared_bytes = kColumnSumThreads * N * sizeof(float)},
                 column_sum_kernel<N, Source>, source, rows, columns, (rows + parts - 1) / parts, sums,
                 accumulate);
}

/// Launches ColumnSum::run for a matrix of elements T from `make_source(N)`, N an integral constant: how many
/// elements a source gives at once.
template <class T, class MakeSource>
void sum_columns(const ColumnSum& of, const MakeSource& make_source, float* sums, bool accumulate,
                 void* workspace, device::Stream& stream) {
  const ColumnSum::Parts parts = of.parts_of(sums, accumulate, workspace);
  const auto launch = [&](auto pack) {
    launch_column_sum<pack()>(make_source(pack), of.replicas(), of.rows(), of.columns(), of.parts(),
                              parts.sums, parts.accumulate, stream);
  };
  if (of.columns() % kPackElements<T> == 0)
    launch(std::integral_constant<int, kPackElements<T>>());
  else
    launch(std::integral_constant<int, 1>());
  of.finish(sums, accumulate, workspace, stream);
}

}  // namespace lockstep::ops
