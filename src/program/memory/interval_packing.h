#pragma once

#include <cstdint>
#include <span>

namespace lockstep::program {

/// A need for `size_bytes` during the closed interval [first, last] of a sequence of events.
struct Interval {
  int64_t size_bytes = 0;
  int first = 0, last = 0;
  int64_t offset = -1;  ///< result
};

/// Places intervals so that those alive at the same time do not overlap: largest first, each at the lowest
/// offset that fits, at multiples of 64 bytes. Returns the total number of bytes. Deterministic.
int64_t pack_intervals(std::span<Interval> intervals);

}  // namespace lockstep::program
