#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/index.h"
#include "run/step_kernels.h"

namespace lockstep::run {

/// What a `serve` instruction says of its range, in memory.
struct ServedRange {
  std::byte* contents = nullptr;
  std::byte* replica = nullptr;  ///< where a worker that serves reads the range; null elsewhere
  int64_t size_bytes = 0;
  int workers = 1;
  std::vector<std::byte*> landings;  ///< by slot and worker
  std::vector<std::byte*> copies;
  UpdateCall update;  ///< of all of it, with what differs from push to push left out

  std::byte* landing(int slot, int worker) const { return nth(landings, slot * workers + worker); }
};

}  // namespace lockstep::run
