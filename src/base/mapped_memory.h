#pragma once

#include <atomic>
#include <csetjmp>
#include <cstddef>

namespace lockstep {

// A file that is mapped into memory may be cut short, or its disk may fail. Whoever reads such a page gets
// SIGBUS, which ends a process. Reads within read_mapped() fail instead.

namespace detail {

/// What the calling thread reads now, and where it goes on if a page is not there.
struct MappedRead {
  const std::byte* begin;
  size_t size_bytes;
  sigjmp_buf out;
};
extern constinit thread_local MappedRead* mapped_read;

}  // namespace detail

/// Call it once memory is mapped, and before it is read. Any other SIGBUS goes to who handled it before.
/// Thread-safe.
void handle_missing_pages();

/// Runs `read`, which reads [begin, begin + size_bytes); or returns false if a page of it is not there.
/// `read` is then left in the middle. REQUIRES: where it reads, it owns nothing that must be released, and
/// holds no lock; it calls no read_mapped().
template <class Read>
[[nodiscard]] bool read_mapped(const void* begin, size_t size_bytes, Read&& read) {
  detail::MappedRead here;
  here.begin = static_cast<const std::byte*>(begin);
  here.size_bytes = size_bytes;
  if (sigsetjmp(here.out, 0) != 0) {
    detail::mapped_read = nullptr;
    return false;
  }
  detail::mapped_read = &here;
  // The handler sees it: a compiler that saw no reader would leave the store out, or read before it.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  read();
  std::atomic_signal_fence(std::memory_order_seq_cst);
  detail::mapped_read = nullptr;
  return true;
}

}  // namespace lockstep
