#include "device/cuda/kernel.h"
#include "ops/cuda/elements.h"
#include "ops/cuda/group_order.h"

namespace lockstep::ops {
namespace {

constexpr unsigned kThreads = 256;

/// Blocks take rows, threads the elements of a row.
device::Grid grid_of(int64_t rows) { return {.blocks = device::blocks_for(rows, 1), .threads = kThreads}; }

template <class T>
__global__ void split_groups_kernel(const T* from, int64_t rows, int groups, int width, T* to) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
    for (int i = static_cast<int>(threadIdx.x); i < groups * width; i += static_cast<int>(blockDim.x))
      to[(i / width * rows + row) * width + i % width] = from[row * groups * width + i];
}

template <class T>
__global__ void join_groups_kernel(const float* from, const T* bias, int64_t rows, int groups, int width,
                                   T* to) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
    for (int i = static_cast<int>(threadIdx.x); i < groups * width; i += static_cast<int>(blockDim.x)) {
      float sum = from[(i / width * rows + row) * width + i % width];
      if (bias != nullptr) sum += static_cast<float>(bias[i]);
      to[row * groups * width + i] = T(sum);
    }
}

}  // namespace

void split_groups(DType dtype, const void* from, int64_t rows, int64_t groups, int64_t width, void* to,
                  device::Stream& stream) {
  with_element_type(dtype, [&]<class T>(T) {
    device::launch(stream, grid_of(rows), split_groups_kernel<T>, static_cast<const T*>(from), rows,
                   static_cast<int>(groups), static_cast<int>(width), static_cast<T*>(to));
  });
}

void join_groups(const float* from, const void* bias, int64_t rows, int64_t groups, int64_t width,
                 DType dtype, void* to, device::Stream& stream) {
  with_element_type(dtype, [&]<class T>(T) {
    device::launch(stream, grid_of(rows), join_groups_kernel<T>, from, static_cast<const T*>(bias), rows,
                   static_cast<int>(groups), static_cast<int>(width), static_cast<T*>(to));
  });
}

}  // namespace lockstep::ops
