#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>

namespace lockstep::device::emulated {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

/// Data that all threads of the running block share.
struct Block {
  Index block, blocks, threads;
  std::byte* dynamic_shared = nullptr;
};
struct Thread {
  Index thread;
};

/// Runs `kernel` for every thread of every block, one block after the other. Throws InternalError if threads
/// of a block, or of a warp, do not all reach a meeting, use a lane outside the warp, or access memory at an
/// unaligned address (emulated/alignment.cpp). REQUIRES: the grid is within limits (device/cuda/grid.h).
void run_grid(Index blocks, Index threads, size_t shared_bytes, const std::function<void()>& kernel);

bool in_kernel();  ///< whether a thread of a block is running, on this thread of the host

// REQUIRES: called by a thread of a running block.
const Block& current_block();
const Thread& current_thread();
int lane();  ///< of the thread in its warp
void meet_block();
void meet_warp(unsigned mask);
/// Ends the kernel; run_grid() throws `error`. For places that cannot throw. Objects on the thread's stack
/// are not destroyed.
[[noreturn]] void end_kernel(std::exception_ptr error);
uint64_t exchange_bits(unsigned mask, uint64_t value, int source);

/// Every lane of a whole warp passes words and gets those of all lanes, which are valid until its next
/// exchange but one.
using Words = std::array<uint64_t, 3>;
using WordsOfWarp = std::array<Words, 32>;
const WordsOfWarp& exchange_words(const Words& words);

// Copies that go on beside the thread which asks for them. By turns they are done at once, or only when they
// are waited for, since a GPU may do either: a missing wait shows as well as memory that is overwritten too
// early. `from` null: zeros.
void start_copy(void* to, const void* from, size_t size_bytes);
void end_group_of_copies();
void wait_for_copies(
    int groups_left);  ///< returns when at most the last `groups_left` groups may be unfinished

}  // namespace lockstep::device::emulated
