#pragma once

// CUDA's language as far as the kernels here use it, for compiling them with the host's compiler: what
// <cuda_runtime.h> gives under nvcc. One block runs after the other on the calling thread; its threads are
// fibers that change places where they meet (emulated/block.h), in another order in every block, so that a
// missing barrier shows.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "device/emulated/block.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__

namespace lockstep {

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define threadIdx (::lockstep::device::emulated::current_thread().thread)
#define blockIdx (::lockstep::device::emulated::current_block().block)
#define blockDim (::lockstep::device::emulated::current_block().threads)
#define gridDim (::lockstep::device::emulated::current_block().blocks)

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

inline void __syncthreads() { device::emulated::meet_block(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) { device::emulated::meet_warp(mask); }

namespace device::emulated {
/// Every lane of `mask` passes a value and gets that of lane `source`, if that is in the warp.
template <class T>
T exchange(unsigned mask, T value, int source) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = exchange_bits(mask, bits, source);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
}  // namespace device::emulated

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const int lane = device::emulated::lane();
  return device::emulated::exchange(mask, value, lane / width * width + source % width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const int lane = device::emulated::lane(), source = lane ^ lane_mask;
  return device::emulated::exchange(mask, value, source / width == lane / width ? source : lane);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = device::emulated::lane(), source = lane + static_cast<int>(delta);
  return device::emulated::exchange(mask, value, source / width == lane / width ? source : lane);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const int lane = device::emulated::lane(), source = lane - static_cast<int>(delta);
  return device::emulated::exchange(mask, value,
                                    source >= 0 && source / width == lane / width ? source : lane);
}
/// Of the whole warp: the lanes that gave the same value.
template <class T>
unsigned __match_any_sync(unsigned, T value) {
  const device::emulated::WordsOfWarp& values =
      device::emulated::exchange_words({static_cast<uint64_t>(value)});
  unsigned same = 0;
  for (size_t lane = 0; lane < 32; ++lane)
    same |= unsigned{values[lane][0] == static_cast<uint64_t>(value)} << lane;
  return same;
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  unsigned all = 0;
  for (int lane = 0; lane < 32; ++lane)
    if (mask >> lane & 1u) all |= unsigned{device::emulated::exchange(mask, predicate, lane)} << lane;
  return all;
}

template <class T>
T __ldg(const T* from) {
  return *from;
}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

}  // namespace lockstep
