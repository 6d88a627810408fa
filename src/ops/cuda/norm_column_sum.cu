#include "base/ensure.h"
#include "ops/cuda/column_reduction.h"
#include "ops/cuda/norm_column_sum.h"
#include "ops/cuda/norm_rows.h"
#include "ops/cuda/replica_sum.h"

namespace lockstep::ops {
namespace {

template <class Float>
struct ColumnTotal {
  using Wide = ColumnTotal<double>;
  Float sum = 0;

  template <class Other>
  __device__ void join(const ColumnTotal<Other>& other) {
    sum += static_cast<Float>(other.sum);
  }
};

struct FinishTotal {
  float* sums;  // [virtual replicas, width]
  int64_t width;
  bool accumulate;

  __device__ void operator()(int64_t c, const ColumnTotal<double>& total) const {
    add_or_set(sums[blockIdx.y * width + c], total.sum, accumulate);
  }
};

/// Reads x once. Whoever shares a row in a norm's backward, a warp or a block, takes the same rows here, and
/// each thread the same columns, but column by column.
template <class T, int N, bool kWarp>
__global__ void __launch_bounds__(kMostNormThreads)
    norm_column_sum_kernel(const T* x, int64_t rows, int width, float* partials) {
  auto* const of_warps = device::dynamic_shared<float>();  // [warps, width]
  const NormRowGroup<N, 1, kWarp> group(width);
  float* const of_block = partials + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * width;
  float* const to = kWarp ? of_warps + static_cast<int>(threadIdx.x) / device::kWarpSize * width : of_block;
  x += int64_t{blockIdx.y} * rows * width;
  for (int c = group.column(0); c < width; c += group.threads * N) {
    float sum[N] = {};
#pragma unroll 4
    for (int64_t row = group.first; row < rows; row += group.step) {
      const auto pack = load_pack<N>(x + row * width + c);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += static_cast<float>(pack.value[i]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) to[c + i] = sum[i];
  }
  if constexpr (kWarp) {
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.x); c < width; c += kNormWarps * device::kWarpSize) {
      float total = of_warps[c];
      for (int warp = 1; warp < kNormWarps; ++warp) total += of_warps[warp * width + c];
      of_block[c] = total;
    }
  }
}

}  // namespace

NormColumnSum::NormColumnSum(int64_t rows, int64_t width, DType dtype, int replicas)
    : rows_(rows),
      width_(width),
      dtype_(dtype),
      replicas_(replicas),
      blocks_(norm_backward_blocks(rows, width)) {}

/// Whole packs.
int64_t NormColumnSum::partials() const { return (replicas_ * blocks_ * width_ + 3) / 4 * 4; }

int64_t NormColumnSum::workspace_bytes() const {
  return (partials() + (replicas_ == 1 ? 0 : replicas_ * width_)) * size_of(DType::float32);
}

void NormColumnSum::run(const void* x, float* sums, bool accumulate, void* workspace,
                        device::Stream& stream) const {
  const NormLayout layout(width_, kNormBackwardValues);
  with_element_type_and_pack(dtype_, width_, [&]<class T, int N>(T, std::integral_constant<int, N>) {
    device::launch(
        stream,
        {.blocks = dim3(static_cast<unsigned>(blocks_), static_cast<unsigned>(replicas_)),
         .threads = layout.threads,
         .shared_bytes = layout.by_warps ? kNormWarps * static_cast<size_t>(width_) * sizeof(float) : 0},
        layout.by_warps ? norm_column_sum_kernel<T, N, true> : norm_column_sum_kernel<T, N, false>,
        static_cast<const T*>(x), rows_, static_cast<int>(width_), static_cast<float*>(workspace));
  });
  finish(sums, accumulate, workspace, stream);
}

void NormColumnSum::finish(float* sums, bool accumulate, void* workspace, device::Stream& stream) const {
  const auto* const of_blocks = static_cast<const ColumnTotal<float>*>(workspace);
  const auto count = static_cast<int>(blocks_);
  if (replicas_ == 1)
    return fold_columns(stream, of_blocks, count, width_, FinishTotal{sums, width_, accumulate});
  ensure(!accumulate, "sums of several virtual replicas are complete");
  float* const each = static_cast<float*>(workspace) + partials();
  fold_columns(stream, of_blocks, count, width_, FinishTotal{each, width_, false}, replicas_);
  sum_replicas(each, width_, replicas_, width_, sums, stream);
}

}  // namespace lockstep::ops
