#pragma once

#include "ops/cuda/elements.h"

namespace lockstep::ops {

inline constexpr int kMapThreads = 256;
inline constexpr int kMapPacks =
    2;  // of each source, read by a thread before it computes: enough bytes on their way

/// to[i] = function(first[i]) or function(first[i], second[i]): every element is moved once. `to` may be a
/// source's memory. A block has a piece of its own, so that there are as many as the tensor is long.
template <int Sources, class T, class Function>
__global__ void __launch_bounds__(kMapThreads)
    map_kernel(T* to, const T* first, const T* second, int64_t count, Function function) {
  constexpr int64_t kStep = int64_t{kMapThreads} * kPackElements<T>;
  const int64_t begin = blockIdx.x * kStep * kMapPacks + int64_t{threadIdx.x} * kPackElements<T>;
  ElementPack<T> a[kMapPacks], b[kMapPacks];
#pragma unroll
  for (int p = 0; p < kMapPacks; ++p) {
    const int64_t at = begin + p * kStep;
    if (at >= count) continue;
    a[p] = load_elements(first + at, count - at);
    if constexpr (Sources == 2) b[p] = load_elements(second + at, count - at);
  }
#pragma unroll
  for (int p = 0; p < kMapPacks; ++p) {
    const int64_t at = begin + p * kStep;
    if (at >= count) continue;
    ElementPack<T> result;
#pragma unroll
    for (int e = 0; e < kPackElements<T>; ++e) {
      const float x = static_cast<float>(a[p].value[e]);
      if constexpr (Sources == 2) {
        result.value[e] = T(function(x, static_cast<float>(b[p].value[e])));
      } else {
        result.value[e] = T(function(x));
      }
    }
    store_elements(to + at, result, count - at);
  }
}

inline device::Grid map_grid(int64_t count, int64_t pack_elements) {
  return {.blocks = device::blocks_for(count, kMapThreads * kMapPacks * pack_elements, 0x7fffffff),
          .threads = kMapThreads};
}

template <class T, class Function>
void launch_map(device::Stream& stream, T* to, const T* from, int64_t count, const Function& function) {
  device::launch(stream, map_grid(count, kPackElements<T>), map_kernel<1, T, Function>, to, from,
                 static_cast<const T*>(nullptr), count, function);
}
template <class T, class Function>
void launch_map(device::Stream& stream, T* to, const T* first, const T* second, int64_t count,
                const Function& function) {
  device::launch(stream, map_grid(count, kPackElements<T>), map_kernel<2, T, Function>, to, first, second,
                 count, function);
}

struct SumOfTwo {
  LOCKSTEP_HOST_DEVICE float operator()(float a, float b) const { return a + b; }
};

}  // namespace lockstep::ops
