#pragma once

#include <algorithm>
#include <cstdint>

#include "base/ensure.h"
#include "tensor/part.h"

namespace lockstep::layout {

/// Bytes [begin, end) of something.
struct ByteSpan {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool empty() const { return begin >= end; }
  bool operator==(const ByteSpan&) const = default;
};

/// The bytes of a range of float32 elements, counted from the first element of all. REQUIRES:
/// part.is_range().
inline ByteSpan bytes_of(const tensor::Part& part) {
  ensure(part.is_range(), "bytes of one stretch are those of a range of elements");
  return {part.first() * 4, part.end() * 4};
}
inline tensor::Part elements_of(const ByteSpan& bytes) {
  return bytes.empty() ? tensor::Part() : tensor::Part::range(bytes.begin / 4, bytes.size() / 4);
}

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
