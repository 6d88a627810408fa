#pragma once

// The means to write kernels, for both nvcc and the emulated GPU. A source of kernels (.cu) includes this
// header and no header of CUDA, and launches by launch(). Then tests run it on any machine.

#include <utility>

#include "base/half.h"
#include "device/device.h"
#include "lockstep/tensor.h"

#if defined(__CUDACC__)
#include <cuda_runtime.h>

#include "device/cuda/check.h"
#else
#include "device/emulated/cuda_language.h"
#endif

#include "device/cuda/grid.h"

namespace lockstep::device {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullWarp = 0xffffffffu;

/// Enough blocks of `threads` for `count` elements, and at most `most`: kernels stride over the rest.
inline unsigned blocks_for(int64_t count, int64_t per_block, int64_t most = 65535) {
  const int64_t blocks = (count + per_block - 1) / per_block;
  return static_cast<unsigned>(blocks < 1 ? 1 : (blocks > most ? most : blocks));
}

#if defined(__CUDACC__)

/// Runs `kernel` after the stream's earlier work. Throws InternalError if GPUs refuse the grid.
template <class... Parameters, class... Arguments>
void launch(Stream& stream, const Grid& grid, void (*kernel)(Parameters...), Arguments&&... arguments) {
  check_limits(grid);
  if (grid.shared_bytes > kSharedWithoutAsking - kMostStaticShared)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(grid.shared_bytes)));
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = grid.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.native());
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...));
}

/// Dynamic shared memory of the block, aligned to 16 bytes.
template <class T>
__device__ inline T* dynamic_shared() {
  extern __shared__ uint4 lockstep_dynamic_shared[];
  return reinterpret_cast<T*>(lockstep_dynamic_shared);
}

/// 2^x, within 2 ulp.
__device__ inline float fast_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// a / b, within 2 ulp if |b| < 2^126; 0 beyond.
__device__ inline float fast_divide(float a, float b) { return __fdividef(a, b); }

/// Begins to load global memory at this address into the GPU's cache.
__device__ inline void prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from)));
}

#else

template <class... Parameters, class... Arguments>
void launch(Stream& stream, const Grid& grid, void (*kernel)(Parameters...), Arguments&&... arguments) {
  check_limits(grid);
  stream.launch([=, ... values = static_cast<std::decay_t<Parameters> >(std::forward<Arguments>(arguments))] {
    emulated::run_grid({grid.blocks.x, grid.blocks.y, grid.blocks.z},
                       {grid.threads.x, grid.threads.y, grid.threads.z}, grid.shared_bytes,
                       [&] { kernel(values...); });
  });
}

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulated::current_block().dynamic_shared);
}

inline float fast_exp2(float x) { return std::exp2(x); }
inline float fast_divide(float a, float b) { return a / b; }
inline void prefetch(const void*) {}

#endif

/// Sums over the 32 lanes of a warp; every lane gets the result. The order is fixed.
template <class T>
__device__ inline T warp_sum(T value) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2)
    value += __shfl_xor_sync(kFullWarp, value, offset);
  return value;
}
template <class T>
__device__ inline T warp_max(T value) {
  for (int offset = kWarpSize / 2; offset > 0; offset /= 2) {
    const T other = __shfl_xor_sync(kFullWarp, value, offset);
    value = other > value || other != other ? other : value;  // NaN wins
  }
  return value;
}

/// Sums over a block of whole warps, at most 1024 threads; every thread gets the result, in a fixed order.
/// `scratch`: 33 values in shared memory. All threads of the block call it; the scratch may be used again
/// after the next barrier.
template <class T>
__device__ inline T block_sum(T value, T* scratch) {
  const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / kWarpSize;
  value = warp_sum(value);
  if (thread % kWarpSize == 0) scratch[thread / kWarpSize] = value;
  __syncthreads();
  if (thread < kWarpSize) {
    value = warp_sum(thread < warps ? scratch[thread] : T{});
    if (thread == 0) scratch[kWarpSize] = value;
  }
  __syncthreads();
  return scratch[kWarpSize];
}

/// N elements moved by one access: N * sizeof(T) is 2, 4, 8 or 16 bytes.
template <class T, int N>
struct alignas(N * sizeof(T)) Pack {
  T value[N];
};

/// Makes the compiler compute values that follow from the pack again if they are used after this point.
/// Otherwise it may keep them in registers, several for each of the pack's, as long as it keeps the pack.
template <class T, int N>
__device__ inline void compute_anew([[maybe_unused]] Pack<T, N>& pack) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(pack) == sizeof(uint4)) {
    uint4 words = *reinterpret_cast<const uint4*>(&pack);
    asm("" : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w));
    *reinterpret_cast<uint4*>(&pack) = words;
  }
#endif
}

}  // namespace lockstep::device
