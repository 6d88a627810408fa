#pragma once

// A launch's grid, and what GPUs allow. Included by device/cuda/kernel.h, after dim3 is known.

#include <cstddef>
#include <string>

#include "lockstep/error.h"

namespace lockstep::device {

struct Grid {
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;  ///< dynamic shared memory of a block
};

// Shared memory of a block (compute capability 9.0). What a kernel declares as __shared__ counts too, and no
// launch can ask how much that is: kernels declare at most kMostStaticShared, which a test checks
// (tests/device/static_shared_memory_test.py), and launches leave it free.
inline constexpr size_t kMostShared = 227 * 1024;
inline constexpr size_t kSharedWithoutAsking = 48 * 1024;
inline constexpr size_t kMostStaticShared = 16 * 1024;

/// Throws InternalError if a GPU would refuse the grid: CUDA says no more than "invalid argument", and the
/// emulated GPU would run it.
inline void check_limits(const Grid& grid) {
  const auto within = [](const dim3& size, unsigned x, unsigned y, unsigned z) {
    return size.x >= 1 && size.x <= x && size.y >= 1 && size.y <= y && size.z >= 1 && size.z <= z;
  };
  if (within(grid.blocks, 0x7fffffff, 65535, 65535) && within(grid.threads, 1024, 1024, 64) &&
      grid.threads.x * grid.threads.y * grid.threads.z <= 1024 &&
      grid.shared_bytes <= kMostShared - kMostStaticShared)
    return;
  const auto text = [](const dim3& size) {
    return std::to_string(size.x) + " x " + std::to_string(size.y) + " x " + std::to_string(size.z);
  };
  throw InternalError(
      "a kernel is launched with " + text(grid.blocks) + " blocks of " + text(grid.threads) +
      " threads and " + std::to_string(grid.shared_bytes) +
      " bytes of dynamic shared memory; GPUs take 1 to 2^31 - 1 x 65535 x 65535 blocks of 1 to 1024 x 1024 x "
      "64 threads, 1024 together, and " +
      std::to_string(kMostShared - kMostStaticShared) + " bytes");
}

}  // namespace lockstep::device
