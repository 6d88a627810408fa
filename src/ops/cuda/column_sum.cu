#include <algorithm>

#include "device/cuda/kernel.h"
#include "ops/cuda/column_sum.h"
#include "ops/cuda/elements.h"
#include "ops/cuda/replica_sum.h"

namespace lockstep::ops {
namespace {

constexpr unsigned kThreads = 256;
constexpr int64_t kRowsPerThread = 8;  // at the least: below that, more parts only make more partial sums
constexpr int64_t kMostBlocks = 1024;  // 8 on each of an H200's 132 multiprocessors

/// The kernel's blocks: `lanes` threads side by side, each with a pack of columns; the block's others take
/// further rows.
struct Tiling {
  unsigned lanes = 1, tiles = 1;

  Tiling(int64_t columns, int64_t pack) {
    const int64_t packs = (columns + pack - 1) / pack;
    while (lanes < device::kWarpSize && lanes < packs) lanes *= 2;
    tiles = device::blocks_for(packs, lanes, INT32_MAX);
  }
  unsigned row_lanes() const { return kThreads / lanes; }
};

int64_t pack_of(int64_t columns, DType dtype) {
  const int64_t widest = 16 / size_of(dtype);
  return columns % widest == 0 ? widest : 1;
}

/// Part y of the rows of matrix z into row z * parts + y of `sums`. Reads x once, which is what there is to
/// move; partial sums are 1/16 of it at the most.
template <class T, int N>
__global__ void column_sum_kernel(const T* x, int64_t rows, int64_t columns, int64_t rows_per_part,
                                  float* sums, bool accumulate) {
  float* shared = device::dynamic_shared<float>();  // [row lanes][lanes * N]
  const int lanes = static_cast<int>(blockDim.x), row_lanes = static_cast<int>(blockDim.y);
  const int lane = static_cast<int>(threadIdx.x), row_lane = static_cast<int>(threadIdx.y);
  x += int64_t{blockIdx.z} * rows * columns;
  const int64_t tile = int64_t{blockIdx.x} * lanes * N, column = tile + lane * N;
  const int64_t begin = int64_t{blockIdx.y} * rows_per_part;
  const int64_t end = begin + rows_per_part < rows ? begin + rows_per_part : rows;

  float sum[N] = {};
  if (column < columns) {
#pragma unroll 4
    for (int64_t row = begin + row_lane; row < end; row += row_lanes) {
      const auto pack = *reinterpret_cast<const device::Pack<T, N>*>(x + row * columns + column);
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

template <class T, int N>
void launch_sum(const void* x, int matrices, int64_t rows, int64_t columns, int64_t parts, float* sums,
                bool accumulate, device::Stream& stream) {
  const Tiling tiling(columns, N);
  device::launch(stream,
                 {.blocks = dim3(tiling.tiles, static_cast<unsigned>(parts), static_cast<unsigned>(matrices)),
                  .threads = dim3(tiling.lanes, tiling.row_lanes()),
                  .shared_bytes = kThreads * N * sizeof(float)},
                 column_sum_kernel<T, N>, static_cast<const T*>(x), rows, columns, (rows + parts - 1) / parts,
                 sums, accumulate);
}

template <class T>
void sum_parts(const void* x, int matrices, int64_t rows, int64_t columns, DType dtype, int64_t parts,
               float* sums, bool accumulate, device::Stream& stream) {
  if (pack_of(columns, dtype) > 1)
    launch_sum<T, 16 / sizeof(T)>(x, matrices, rows, columns, parts, sums, accumulate, stream);
  else
    launch_sum<T, 1>(x, matrices, rows, columns, parts, sums, accumulate, stream);
}

int64_t whole_packs(int64_t floats) { return (floats + 3) / 4 * 4; }

}  // namespace

ColumnSum::ColumnSum(int64_t rows, int64_t columns, DType dtype, int replicas)
    : rows_(rows), columns_(columns), dtype_(dtype), replicas_(replicas) {
  const Tiling tiling(columns, pack_of(columns, dtype));
  const int64_t wanted = rows / (tiling.row_lanes() * kRowsPerThread);
  parts_ = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, kMostBlocks / tiling.tiles));
}

int64_t ColumnSum::workspace_bytes() const {
  const int64_t of_parts = parts_ == 1 ? 0 : replicas_ * parts_ * columns_;
  const int64_t of_replicas = replicas_ == 1 ? 0 : replicas_ * columns_;
  return (whole_packs(of_parts) + of_replicas) * int64_t{sizeof(float)};
}

void ColumnSum::run(const void* x, float* sums, bool accumulate, void* workspace,
                    device::Stream& stream) const {
  ensure(!accumulate || replicas_ == 1, "sums of several virtual replicas are complete");
  float* const of_parts = static_cast<float*>(workspace);
  float* const of_replicas =
      replicas_ == 1 ? sums : of_parts + (parts_ == 1 ? 0 : whole_packs(replicas_ * parts_ * columns_));
  float* const first = parts_ == 1 ? of_replicas : of_parts;
  const bool first_accumulates = parts_ == 1 && accumulate;
  with_element_type(dtype_, [&](auto element) {
    sum_parts<decltype(element)>(x, replicas_, rows_, columns_, dtype_, parts_, first, first_accumulates,
                                 stream);
  });
  // A column for each thread: what there is left is little, and more blocks share it.
  if (parts_ > 1)
    launch_sum<float, 1>(of_parts, replicas_, parts_, columns_, 1, of_replicas, accumulate, stream);
  if (replicas_ > 1) sum_replicas(of_replicas, columns_, replicas_, columns_, sums, stream);
}

}  // namespace lockstep::ops
