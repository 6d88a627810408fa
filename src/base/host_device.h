#pragma once

// Marks small functions that both the CPU loops and CUDA kernels call, so that a formula is written once.
#if defined(__CUDACC__)
#define LOCKSTEP_HOST_DEVICE __host__ __device__
#else
#define LOCKSTEP_HOST_DEVICE
#endif
