#include "cuda_kernels.h"
#include "device/cuda/check.h"

namespace lockstep::ops {
namespace {

__global__ void empty_kernel() {}

__device__ uint64_t nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void waiting_kernel(const volatile uint64_t* word, uint64_t most_nanoseconds) {
  const uint64_t began = nanoseconds();
  while (*word == 0 && nanoseconds() - began < most_nanoseconds) __nanosleep(1000);
}

}  // namespace

void launch_empty_kernel(cudaStream_t stream) {
  empty_kernel<<<1, 32, 0, stream>>>();
  device::check(cudaGetLastError());
}

void launch_waiting_kernel(const uint64_t* word, uint64_t most_nanoseconds, cudaStream_t stream) {
  waiting_kernel<<<1, 1, 0, stream>>>(word, most_nanoseconds);
  device::check(cudaGetLastError());
}

}  // namespace lockstep::ops
