#pragma once

#include <algorithm>

#include "ops/cuda/floats.h"

namespace lockstep::ops {

// How kernels of norms share out rows. Sums over rows follow it, so it is a function of the rows' number and
// length alone.

inline constexpr int64_t kNormWarpWidth = 1024;  // rows up to here are a warp's each, longer ones a block's
inline constexpr int kNormWarps = 8;             // of a block whose warps have rows of their own
inline constexpr int kMostNormThreads = 1024;    // of a block that shares a row

/// The threads that share a row: a warp, or a block. They take packs of N elements in turn; a thread keeps
/// its first kPacks in registers. Only a block's rows may be longer than that.
template <int N, int kPacks, bool kWarp>
struct NormRowGroup {
  int width, threads, thread;
  int64_t first, step;  // rows

  __device__ explicit NormRowGroup(int width_) : width(width_) {
    const int t = static_cast<int>(threadIdx.x);
    threads = kWarp ? device::kWarpSize : static_cast<int>(blockDim.x);
    thread = kWarp ? t % device::kWarpSize : t;
    first = kWarp ? static_cast<int64_t>(blockIdx.x) * kNormWarps + t / device::kWarpSize : blockIdx.x;
    step = kWarp ? static_cast<int64_t>(gridDim.x) * kNormWarps : gridDim.x;
  }
  /// Where pack k of the thread begins.
  __device__ int column(int k) const { return (k * threads + thread) * N; }
  /// Calls work(column) for packs that are not kept.
  template <class Work>
  __device__ void for_rest(const Work& work) const {
    if constexpr (!kWarp)
      for (int c = column(kPacks); c < width; c += threads * N) work(c);
  }
  /// `scratch`: 33 values, used again only after another sum with other scratch.
  __device__ float sum(float value, float* scratch) const {
    if constexpr (kWarp) {
      return device::warp_sum(value);
    } else {
      return device::block_sum(value, scratch);
    }
  }
};

/// As the ops that add two tensors round it.
template <class T, int N>
__device__ inline device::Pack<T, N> rounded_sum(const device::Pack<T, N>& a, const device::Pack<T, N>& b) {
  device::Pack<T, N> sum;
#pragma unroll
  for (int i = 0; i < N; ++i)
    sum.value[i] = static_cast<T>(static_cast<float>(a.value[i]) + static_cast<float>(b.value[i]));
  return sum;
}

/// That a thread of a block's row keeps in registers in backward, which keeps four numbers for each.
inline constexpr int kNormBackwardValues = 8;

/// The threads of a block, and whether its warps have rows of their own.
struct NormLayout {
  bool by_warps;
  unsigned threads;
  int64_t groups_per_block;

  NormLayout(int64_t width, int64_t values_per_thread) : by_warps(width <= kNormWarpWidth) {
    if (by_warps) {
      threads = kNormWarps * device::kWarpSize;
      groups_per_block = kNormWarps;
      return;
    }
    const int64_t per_warp = values_per_thread * device::kWarpSize;
    threads = static_cast<unsigned>(std::min<int64_t>(kMostNormThreads / device::kWarpSize,
                                                      (width + per_warp - 1) / per_warp)) *
              device::kWarpSize;
    groups_per_block = 1;
  }
};

/// Backward's blocks for each virtual replica, of `rows`.
inline int64_t norm_backward_blocks(int64_t rows, int64_t width) {
  const NormLayout layout(width, kNormBackwardValues);
  // As many as fill a large GPU's 132 multiprocessors once or twice, since each leaves partial sums: two of
  // eight warps on each, or four smaller ones or with short rows. Not as many as the device has: bits follow.
  const bool small = layout.by_warps ? width <= 256 : layout.threads <= 256;
  const int64_t most = small ? 512 : 256;
  return std::min(most, (rows + layout.groups_per_block - 1) / layout.groups_per_block);
}

}  // namespace lockstep::ops
