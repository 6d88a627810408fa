#pragma once

#include <cmath>

#include "ops/cuda/floats.h"
#include "ops/cuda/norm_rows.h"

namespace lockstep::ops {

// The forward kernel of layer norm and RMS norm.

template <int N>
__device__ inline float sum_of_values(const float (&values)[N]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += values[i];
  return sum;
}
template <int N>
__device__ inline float squares_of_values(const float (&values)[N], float mean) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) sum = std::fma(values[i] - mean, values[i] - mean, sum);
  return sum;
}

template <class T>
struct NormForwardArguments {
  const T *x, *addend;         // x is normalised or, if the kernel adds, their sum,
  T* sum;                      // which is then written here
  const float *weight, *bias;  // no bias: null
  T* y;
  float *means, *inverses;  // RMS norm: no means, null
  int64_t rows;
  int width;
  float epsilon;
};

/// Reads x and writes y once; if it adds, also reads the addend and writes the sum once. A row stays in
/// registers, so that its variance is taken from the mean in a second pass, without cancellation; what does
/// not fit is read again.
template <class T, int N, int kPacks, bool kWarp, bool kAdds>
__global__ void __launch_bounds__(kWarp ? kNormWarps* device::kWarpSize : kMostNormThreads)
    norm_forward_kernel(NormForwardArguments<T> a) {
  // Packs of a sum's terms that are under way together.
  constexpr int kTogether = kWarp ? (N > 1 ? kPacks : 8) : (N > 1 ? 2 : 4);
  __shared__ float scratch[2][device::kWarpSize + 1];
  const NormRowGroup<N, kPacks, kWarp> group(a.width);
  const float share = 1.0f / static_cast<float>(a.width);
  for (int64_t row = group.first; row < a.rows; row += group.step) {
    const int64_t begin = row * a.width;
    float kept[kPacks][N];
    if constexpr (kAdds) {
#pragma unroll
      for (int first = 0; first < kPacks; first += kTogether) {
        device::Pack<T, N> x[kTogether], addend[kTogether];
#pragma unroll
        for (int k = 0; k < kTogether; ++k)
          if (const int c = group.column(first + k); c < a.width) {
            x[k] = load_pack<N>(a.x + begin + c);
            addend[k] = load_pack<N>(a.addend + begin + c);
          }
#pragma unroll
        for (int k = 0; k < kTogether; ++k)
          if (const int c = group.column(first + k); c < a.width) {
            const device::Pack<T, N> sum = rounded_sum(x[k], addend[k]);
            store_pack(a.sum + begin + c, sum);
            widen(sum, kept[first + k]);
          }
      }
    } else {
#pragma unroll
      for (int k = 0; k < kPacks; ++k)
        if (group.column(k) < a.width) load_floats<N>(a.x + begin + group.column(k), kept[k]);
    }
    const bool centered = a.means != nullptr;
    float sum = 0;
    if (centered) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k)
        if (group.column(k) < a.width) sum += sum_of_values(kept[k]);
    }
    group.for_rest([&](int c) {
      device::Pack<T, N> x = load_pack<N>(a.x + begin + c);
      if constexpr (kAdds) {
        x = rounded_sum(x, load_pack<N>(a.addend + begin + c));
        store_pack(a.sum + begin + c, x);
      }
      float values[N];
      widen(x, values);
      sum += sum_of_values(values);
    });
    const float mean = centered ? group.sum(sum, scratch[0]) * share : 0.0f;
    if (!centered && !kWarp) __syncthreads();  // the scratch of the sum below may still be read

    // A thread reads again only what it has written itself.
    const T* const again = (kAdds ? a.sum : a.x) + begin;
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) squares += squares_of_values(kept[k], mean);
    group.for_rest([&](int c) {
      float values[N];
      load_floats<N>(again + c, values);
      squares += squares_of_values(values, mean);
    });
    const float inverse = 1.0f / std::sqrt(group.sum(squares, scratch[1]) * share + a.epsilon);
    if (group.thread == 0) {
      if (centered) a.means[row] = mean;
      a.inverses[row] = inverse;
    }

    const auto write = [&](int c, const float(&values)[N]) {
      float w[N], b[N], result[N];
      load_floats<N>(a.weight + c, w);
      if (a.bias != nullptr) load_floats<N>(a.bias + c, b);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normalized = (values[i] - mean) * inverse;
        result[i] = a.bias != nullptr ? std::fma(normalized, w[i], b[i]) : normalized * w[i];
      }
      store_floats<N>(a.y + begin + c, result);
    };
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) write(group.column(k), kept[k]);
    group.for_rest([&](int c) {
      float values[N];
      load_floats<N>(again + c, values);
      write(c, values);
    });
  }
}

}  // namespace lockstep::ops
