#pragma once

#include <cmath>

#include "ops/cuda/column_reduction.h"
#include "ops/cuda/norm_rows.h"

namespace lockstep::ops {

// The backward kernel of layer norm and RMS norm.

template <class T>
struct NormBackwardArguments {
  const T *x, *dy;
  const float *weight, *means, *inverses;  // RMS norm: no means, null
  T* dx;                                   // null: not wanted
  const T* addend;           // null, or what is added to dx: the gradient that another reader of x gives it
  SumPair<float>* partials;  // [virtual replicas, blocks, width]: of dy n, and of dy
  float* dx_partials;        // null, or likewise: of what is written to dx
  int64_t rows;              // of a virtual replica, whose blocks those of one blockIdx.y are
  int width;
};

/// Blocks that a multiprocessor is to hold at the least, which limits registers. The longer the rows of
/// warps, the fewer blocks have as much under way.
constexpr int least_norm_blocks(int group, int elements, int packs) {
  if (group != device::kWarpSize || elements == 1 || packs * elements > 24) return 1;
  return packs * elements > 8 ? 2 : 4;
}

/// Sums of the columns that a thread keeps of what it writes, over its rows: of warps' rows in shared memory,
/// behind the sums of the block, where a warp's threads access neighbouring words.
template <int N, int kPacks, bool kWarp>
class DxSums {
 public:
  __device__ explicit DxSums(int width)
      : of_warps_(reinterpret_cast<float*>(device::dynamic_shared<SumPair<float>>() + width)),
        own_(of_warps_ + static_cast<int>(threadIdx.x) / device::kWarpSize * kOfWarp +
             static_cast<int>(threadIdx.x) % device::kWarpSize) {}
  static constexpr size_t shared_bytes() { return kNormWarps * kOfWarp * sizeof(float); }

  __device__ void clear() {
    for (int i = 0; i < kPacks * N; ++i) own_[i * device::kWarpSize] = 0;
  }
  template <class T>
  __device__ void add(int pack, const device::Pack<T, N>& values) {
#pragma unroll
    for (int i = 0; i < N; ++i)
      own_[(pack * N + i) * device::kWarpSize] += static_cast<float>(values.value[i]);
  }
  /// Of all warps; after a barrier.
  __device__ float total(int column) const {
    const int pack = column / (device::kWarpSize * N), lane = column / N % device::kWarpSize;
    const float* const of = of_warps_ + (pack * N + column % N) * device::kWarpSize + lane;
    float total = of[0];
    for (int warp = 1; warp < kNormWarps; ++warp) total += of[warp * kOfWarp];
    return total;
  }

 private:
  static constexpr int kOfWarp = kPacks * N * device::kWarpSize;
  float *of_warps_, *own_;
};

/// Of a block's row in registers, of which such rows leave some.
template <int N, int kPacks>
class DxSums<N, kPacks, false> {
 public:
  __device__ explicit DxSums(int) {}
  static constexpr size_t shared_bytes() { return 0; }

  __device__ void clear() {}
  template <class T>
  __device__ void add(int pack, const device::Pack<T, N>& values) {
#pragma unroll
    for (int i = 0; i < N; ++i) sums_[pack][i] += static_cast<float>(values.value[i]);
  }
  __device__ void store(int pack, float* to) const {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = sums_[pack][i];
  }

 private:
  float sums_[kPacks][N] = {};
};

/// With g = dy weight and n = (x - mean) inverse: dx = inverse (g - mean(g) - n mean(g n)); of an RMS norm,
/// mean and mean(g) are 0. Reads x, dy and, if there is one, the addend, and writes dx once; on the way
/// threads add up dy n and dy of their columns over the block's rows.
///
/// Sums of dx's columns are kept in shared memory by warps, whose registers are full, and added up in the
/// order of NormColumnSum.
///
/// kGroup: a warp's size, or the most threads that a block may have.
template <class T, int N, int kPacks, int kGroup>
__global__ void __launch_bounds__(kGroup == device::kWarpSize ? kNormWarps * device::kWarpSize : kGroup,
                                  least_norm_blocks(kGroup, N, kPacks))
    norm_backward_kernel(NormBackwardArguments<T> a) {
  constexpr bool kWarp = kGroup == device::kWarpSize;
  __shared__ float scratch[2][device::kWarpSize + 1];
  const NormRowGroup<N, kPacks, kWarp> group(a.width);
  const float share = 1.0f / static_cast<float>(a.width);
  const bool adds = a.addend != nullptr && a.dx != nullptr;
  SumPair<float>* const of_block =
      a.partials + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * int64_t{a.width};
  const int64_t first = blockIdx.y * a.rows + group.first, end = (blockIdx.y + int64_t{1}) * a.rows;
  SumPair<float> sums[kPacks][N];
  const bool sums_dx = a.dx_partials != nullptr && a.dx != nullptr;
  float* const dx_of_block =
      sums_dx ? a.dx_partials + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * int64_t{a.width} : nullptr;
  DxSums<N, kPacks, kWarp> dx_sums(a.width);
  if (sums_dx) dx_sums.clear();
  for (int64_t row = first; row < end; row += group.step) {
    const int64_t begin = row * a.width;
    const T *row_x = a.x + begin, *row_dy = a.dy + begin;
    device::Pack<T, N> x[kPacks], dy[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) {
        x[k] = load_pack<N>(row_x + group.column(k));
        dy[k] = load_pack<N>(row_dy + group.column(k));
        if (adds) device::prefetch(a.addend + begin + group.column(k));
      }
    const float mean = a.means == nullptr ? 0.0f : a.means[row], inverse = a.inverses[row];

    float sum_g = 0, sum_gn = 0;
    const auto add = [&](int c, const device::Pack<T, N>& of_x, const device::Pack<T, N>& of_dy,
                         SumPair<float>(&to)[N]) {
      float w[N];
      load_floats<N>(a.weight + c, w);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float gradient = static_cast<float>(of_dy.value[i]);
        const float normalized = (static_cast<float>(of_x.value[i]) - mean) * inverse;
        const float g = gradient * w[i];
        sum_g += g;
        sum_gn = std::fma(g, normalized, sum_gn);
        to[i].first = std::fma(gradient, normalized, to[i].first);
        to[i].second += gradient;
      }
    };
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) add(group.column(k), x[k], dy[k], sums[k]);
    // Sums of columns beyond the registers are kept where they are to end up.
    group.for_rest([&](int c) {
      SumPair<float> of_columns[N];
      if (row != first)
        for (int i = 0; i < N; ++i) of_columns[i] = of_block[c + i];
      add(c, load_pack<N>(row_x + c), load_pack<N>(row_dy + c), of_columns);
      for (int i = 0; i < N; ++i) of_block[c + i] = of_columns[i];
    });

    if (a.dx == nullptr) continue;
    const float mean_g = group.sum(a.means == nullptr ? 0.0f : sum_g, scratch[0]) * share,
                mean_gn = group.sum(sum_gn, scratch[1]) * share;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      device::compute_anew(x[k]);
      device::compute_anew(dy[k]);
    }
    const auto gradient_of_x = [&](int c, const device::Pack<T, N>& of_x, const device::Pack<T, N>& of_dy) {
      float w[N];
      load_floats<N>(a.weight + c, w);
      device::Pack<T, N> result;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normalized = (static_cast<float>(of_x.value[i]) - mean) * inverse;
        result.value[i] = static_cast<T>(
            inverse * std::fma(-normalized, mean_gn, static_cast<float>(of_dy.value[i]) * w[i] - mean_g));
      }
      return result;
    };
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) x[k] = gradient_of_x(group.column(k), x[k], dy[k]);
    // The addend is read when dy has been used, and takes its registers.
    if (adds) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k)
        if (group.column(k) < a.width) dy[k] = load_pack<N>(a.addend + begin + group.column(k));
#pragma unroll
      for (int k = 0; k < kPacks; ++k)
        if (group.column(k) < a.width) x[k] = rounded_sum(x[k], dy[k]);
    }
    if (sums_dx) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k)
        if (group.column(k) < a.width) dx_sums.add(k, x[k]);
    }
    T* const row_dx = a.dx + begin;
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) store_pack(row_dx + group.column(k), x[k]);
    group.for_rest([&](int c) {
      device::Pack<T, N> result = gradient_of_x(c, load_pack<N>(row_x + c), load_pack<N>(row_dy + c));
      if (adds) result = rounded_sum(result, load_pack<N>(a.addend + begin + c));
      store_pack(row_dx + c, result);
      if (!sums_dx) return;
      for (int i = 0; i < N; ++i)
        dx_of_block[c + i] = (row == first ? 0.0f : dx_of_block[c + i]) + static_cast<float>(result.value[i]);
    });
  }

  if constexpr (kWarp) {
    // The block's warps have sums of the same columns: they add them up one after the other.
    auto* joined = device::dynamic_shared<SumPair<float>>();
    for (int warp = 0; warp < kNormWarps; ++warp) {
      if (static_cast<int>(threadIdx.x) / device::kWarpSize == warp) {
#pragma unroll
        for (int k = 0; k < kPacks; ++k)
          if (group.column(k) < a.width) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
              SumPair<float>& to = joined[group.column(k) + i];
              if (warp > 0) sums[k][i].join(to);
              to = sums[k][i];
            }
          }
      }
      __syncthreads();
    }
    for (int c = static_cast<int>(threadIdx.x); c < a.width; c += kNormWarps * device::kWarpSize) {
      of_block[c] = joined[c];
      if (sums_dx) dx_of_block[c] = dx_sums.total(c);
    }
  } else {
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) {
#pragma unroll
        for (int i = 0; i < N; ++i) of_block[group.column(k) + i] = sums[k][i];
        if (sums_dx) dx_sums.store(k, dx_of_block + group.column(k));
      }
  }
}

}  // namespace lockstep::ops
