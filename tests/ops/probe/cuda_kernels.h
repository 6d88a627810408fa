#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace lockstep::ops {

void launch_empty_kernel(cudaStream_t stream);
/// One thread that waits until `word` is not 0, or for so many nanoseconds.
void launch_waiting_kernel(const uint64_t* word, uint64_t most_nanoseconds, cudaStream_t stream);

}  // namespace lockstep::ops
