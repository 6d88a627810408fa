#pragma once

#include <atomic>
#include <cstdint>

namespace lockstep::test {

/// How often this program has called operator new, on all threads. Linking allocation_counter.cpp replaces
/// it.
extern std::atomic<int64_t> allocation_count;

}  // namespace lockstep::test
