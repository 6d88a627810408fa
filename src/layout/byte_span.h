#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep::layout {

/// Bytes [begin, end) of something.
struct ByteSpan {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  bool operator==(const ByteSpan&) const = default;
};

/// Empty where they have no byte in common.
inline ByteSpan intersection(const ByteSpan& a, const ByteSpan& b) {
  const int64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  return begin < end ? ByteSpan{begin, end} : ByteSpan{};
}

}  // namespace lockstep::layout
