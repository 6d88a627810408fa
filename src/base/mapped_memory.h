#pragma once

#include <atomic>
#include <csetjmp>
#include <cstddef>

#include "base/ensure.h"

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

/// Call it once memory is mapped, and before it is read, and after the signal was given to others. Any other
/// SIGBUS, also one that a program sends, goes to who handled it before. Thread-safe.
void handle_missing_pages();
/// Whoever took the signal between two calls of handle_missing_pages() is gone: it goes to who handled it
/// before the first one. Thread-safe.
void forget_later_handlers();

/// Runs `read`, which reads [begin, begin + size_bytes); or returns false if a page of it is not there.
/// `read` is then left in the middle. REQUIRES: where it reads, it owns nothing that must be released, holds
/// no lock, and allocates nothing; it is noexcept, and calls no read_mapped(), which throws InternalError.
template <class Read>
[[nodiscard]] bool read_mapped(const void* begin, size_t size_bytes, Read&& read) {
  static_assert(noexcept(read()), "the handler would jump into a frame that an exception had left");
  ensure(detail::mapped_read == nullptr, "a read of mapped memory is within another");
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
