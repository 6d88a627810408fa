#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

#include "base/thread.h"

namespace lockstep {

/// Calls body(begin, end) for ranges of at most `range` numbers that together are [0, count), on the calling
/// thread and up to `threads` - 1 others, which take no signals and have ended on return. The assignment of
/// ranges to threads is unspecified: a free thread takes the next range. If no further thread can be started,
/// the existing ones do all work. REQUIRES: range >= 1; several threads may call `body` at the same time, and
/// it never throws.
template <class Body>
void for_ranges(int64_t count, int64_t range, int threads, const Body& body) {
  std::atomic<int64_t> next = 0;
  const auto work = [&]() noexcept {
    for (int64_t begin; (begin = next.fetch_add(range, std::memory_order_relaxed)) < count;)
      body(begin, std::min(begin + range, count));
  };
  const int64_t useful = std::min<int64_t>(threads, (count + range - 1) / range);
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(std::max<int64_t>(useful - 1, 0)));
  try {
    for (int64_t i = 1; i < useful; ++i) others.push_back(start_thread_without_signals("ranges", work));
  } catch (const std::exception&) {  // no thread, or no memory for one
  }
  work();
  for (auto& thread : others) thread.join();
}

}  // namespace lockstep
