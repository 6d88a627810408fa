#include "program/memory/interval_packing.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace lockstep::program {
namespace {

TEST(IntervalPacking, WhatIsNotAliveAtOnceSharesBytes) {
  std::vector<Interval> intervals{{100, 0, 1}, {100, 2, 3}};
  EXPECT_EQ(pack_intervals(intervals), 128);
  EXPECT_EQ(intervals[0].offset, 0);
  EXPECT_EQ(intervals[1].offset, 0);
}

TEST(IntervalPacking, WhatTouchesInOneEventDoesNotShare) {
  std::vector<Interval> intervals{{100, 0, 2}, {60, 2, 3}};
  EXPECT_EQ(pack_intervals(intervals), 192);
  EXPECT_EQ(intervals[1].offset, 128);
}

TEST(IntervalPacking, FillsGapsBetweenLargerOnes) {
  std::vector<Interval> intervals{{256, 0, 9}, {128, 0, 4}, {64, 5, 9}, {64, 0, 9}};
  EXPECT_EQ(pack_intervals(intervals), 448);
  EXPECT_EQ(intervals[2].offset, 256);  // where the second has died
}

TEST(IntervalPacking, NothingNeedsNothing) {
  std::vector<Interval> intervals{{0, 0, 5}, {0, 1, 2}};
  EXPECT_EQ(pack_intervals(intervals), 0);
  EXPECT_EQ(pack_intervals({}), 0);
}

TEST(IntervalPacking, NeverOverlapsAndStaysBetweenTheBounds) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Interval> intervals(20);
    int64_t sum = 0;
    for (auto& interval : intervals) {
      interval.size_bytes = std::uniform_int_distribution<int64_t>(0, 1000)(random);
      interval.first = std::uniform_int_distribution<int>(0, 15)(random);
      interval.last = std::uniform_int_distribution<int>(interval.first, 15)(random);
      sum += (interval.size_bytes + 63) / 64 * 64;
    }
    const int64_t total = pack_intervals(intervals);
    EXPECT_LE(total, sum);
    for (size_t a = 0; a < intervals.size(); ++a) {
      EXPECT_EQ(intervals[a].offset % 64, 0);
      EXPECT_LE(intervals[a].offset + intervals[a].size_bytes, total);
      for (size_t b = 0; b < a; ++b) {
        const auto &x = intervals[a], &y = intervals[b];
        const bool alive_at_once = x.first <= y.last && y.first <= x.last;
        const bool overlap = x.offset < y.offset + y.size_bytes && y.offset < x.offset + x.size_bytes;
        EXPECT_FALSE(alive_at_once && overlap && x.size_bytes > 0 && y.size_bytes > 0);
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::program
