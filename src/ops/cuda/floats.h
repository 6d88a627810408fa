#pragma once

#include <type_traits>

#include "ops/cuda/elements.h"

namespace lockstep::ops {

// Rows of a matrix as float32, N elements by one access if all rows begin on its border.

template <int N, class T>
__device__ inline device::Pack<T, N> load_pack(const T* from) {
  return *reinterpret_cast<const device::Pack<T, N>*>(from);
}

template <class T, int N>
__device__ inline void store_pack(T* to, const device::Pack<T, N>& pack) {
  *reinterpret_cast<device::Pack<T, N>*>(to) = pack;
}
template <class T, int N>
__device__ inline void widen(const device::Pack<T, N>& pack, float (&to)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = static_cast<float>(pack.value[i]);
}

/// N elements, by accesses of up to 16 bytes to which they are aligned.
template <int N, class T>
__device__ inline void load_floats(const T* from, float (&to)[N]) {
  constexpr int kEach = N < kPackElements<T> ? N : kPackElements<T>;
#pragma unroll
  for (int i = 0; i < N; i += kEach) {
    const auto pack = load_pack<kEach>(from + i);
#pragma unroll
    for (int k = 0; k < kEach; ++k) to[i + k] = static_cast<float>(pack.value[k]);
  }
}
template <int N, class T>
__device__ inline void store_floats(T* to, const float (&from)[N]) {
  constexpr int kEach = N < kPackElements<T> ? N : kPackElements<T>;
#pragma unroll
  for (int i = 0; i < N; i += kEach) {
    device::Pack<T, kEach> pack;
#pragma unroll
    for (int k = 0; k < kEach; ++k) pack.value[k] = static_cast<T>(from[i + k]);
    *reinterpret_cast<device::Pack<T, kEach>*>(to + i) = pack;
  }
}

/// A parameter's gradient: overwritten or added to.
__device__ inline void add_or_set(float& to, double value, bool accumulate) {
  const auto rounded = static_cast<float>(value);
  to = accumulate ? to + rounded : rounded;
}

/// Calls `function` with a value of the element type, and as an integral constant how many elements of rows
/// of `width` are accessed at once: 16 bytes, or one element if that does not divide the rows.
template <class Function>
void with_element_type_and_pack(DType dtype, int64_t width, const Function& function) {
  with_element_type(dtype, [&]<class T>(T element) {
    if (width % kPackElements<T> == 0)
      function(element, std::integral_constant<int, kPackElements<T>>());
    else
      function(element, std::integral_constant<int, 1>());
  });
}

}  // namespace lockstep::ops
