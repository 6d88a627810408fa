#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace lockstep::emulated {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

/// What all threads of the running block see.
struct Block {
  Index block, blocks, threads;
  std::byte* dynamic_shared = nullptr;
};
struct Thread {
  Index thread;
};

/// Runs `kernel` for every thread of every block, one block after the other. Throws InternalError where threads of a
/// block, or of a warp, do not all reach a meeting, or use a lane outside the warp.
void run_grid(Index blocks, Index threads, size_t shared_bytes, const std::function<void()>& kernel);

// REQUIRES: called by a thread of a running block.
const Block& current_block();
const Thread& current_thread();
int lane();                       ///< of the thread in its warp
void meet_block();
void meet_warp(unsigned mask);
uint64_t exchange_bits(unsigned mask, uint64_t value, int source);

}  // namespace lockstep::emulated
