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

/// Empty if they have no byte in common.
inline ByteSpan intersection(const ByteSpan& a, const ByteSpan& b) {
  const int64_t begin = std::max(a.begin, b.begin), end = std::min(a.end, b.end);
  return begin < end ? ByteSpan{begin, end} : ByteSpan{};
}

/// One of `count` parts of something, of about the same size.
struct Slice {
  int index = 0, count = 1;
};

/// Cut on borders of 64 bytes from the span's begin on; may be empty.
inline ByteSpan slice_of(const ByteSpan& span, const Slice& slice) {
  constexpr int64_t kAlignment = 64;
  const auto border = [&](int index) {
    return index == slice.count ? span.end
                                : span.begin + span.size() * index / slice.count / kAlignment * kAlignment;
  };
  return {border(slice.index), border(slice.index + 1)};
}

}  // namespace lockstep::layout
