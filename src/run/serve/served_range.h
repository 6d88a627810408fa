#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/index.h"
#include "run/step_kernels.h"

namespace lockstep::run {

/// What a `serve` instruction says of its range, in memory: of the host, but for replica and state.
struct ServedRange {
  std::byte* contents = nullptr;
  std::byte* replica = nullptr;  ///< where the range lies between sessions; null: where it is served
  int64_t size_bytes = 0;
  std::byte* state = nullptr;   ///< of the optimizer; null without slots
  device::Buffer state_mirror;  ///< where updates find it, if the host cannot touch it where it lies
  int workers = 1;
  std::vector<std::byte*> landings;  ///< by slot and worker
  std::vector<std::byte*> copies;
  UpdateCall update;  ///< of all of it, with what differs from push to push left out

  std::byte* landing(int slot, int worker) const { return nth(landings, slot * workers + worker); }
};

}  // namespace lockstep::run
