#include "layout/byte_span.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"

namespace lockstep::layout {
namespace {

TEST(SliceOf, ASpanAreNeighboursOfAboutTheSameSizeOnBordersOf64Bytes) {
  for (const ByteSpan span :
       {ByteSpan{0, 1 << 20}, ByteSpan{4096, 4096 + 1000}, ByteSpan{64, 64 + 4}, ByteSpan{7, 7}})
    for (const int count : {1, 2, 3, 7}) {
      int64_t at = span.begin;
      for (int i = 0; i < count; ++i) {
        const ByteSpan slice = slice_of(span, {i, count});
        EXPECT_EQ(slice.begin, at) << i << " of " << count;
        EXPECT_TRUE(slice.end == span.end || (slice.end - span.begin) % 64 == 0) << i << " of " << count;
        EXPECT_NEAR(static_cast<double>(slice.size()), static_cast<double>(span.size()) / count, 64);
        at = slice.end;
      }
      EXPECT_EQ(at, span.end) << count;
    }
}

TEST(SliceOf, ASpanIsTheSameOfTheSpanElsewhere) {
  const ByteSpan here{100, 1124}, there{0, 1024};
  for (int i = 0; i < 3; ++i) {
    const ByteSpan slice = slice_of(here, {i, 3});
    EXPECT_EQ(slice_of(there, {i, 3}), (ByteSpan{slice.begin - 100, slice.end - 100}));
  }
}

TEST(ByteSpan, IsARangeOfFloat32Elements) {
  EXPECT_EQ(bytes_of(tensor::Part::range(3, 5)), (ByteSpan{12, 32}));
  EXPECT_EQ(elements_of({12, 32}), tensor::Part::range(3, 5));
  EXPECT_TRUE(bytes_of({}).empty());
  EXPECT_EQ(elements_of({12, 12}), tensor::Part());
  EXPECT_THROW(bytes_of(tensor::Part::strided(0, 2, 2, 4)), InternalError);
}

TEST(SliceOf, AllIsTheWhole) { EXPECT_EQ(slice_of({3, 1000}, {}), (ByteSpan{3, 1000})); }

}  // namespace
}  // namespace lockstep::layout
