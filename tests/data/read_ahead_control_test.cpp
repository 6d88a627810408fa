#include "data/read_ahead_control.h"

#include <gtest/gtest.h>

namespace lockstep::data {
namespace {

using Size = ReadAheadSize;

/// Notes eight batches alike.
Size note_all(ReadAheadControl& control, double waited_ms, int ready) {
  for (int i = 0; i < 8; ++i) control.note(waited_ms, 100, ready);
  return control.size();
}

TEST(ReadAheadControl, BeginsWithOneThreadAndStaysWhileNothingWaits) {
  ReadAheadControl control(8, 16);
  EXPECT_EQ(control.size(), (Size{1, 4}));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(note_all(control, 1, 4), (Size{1, 4}));
}

TEST(ReadAheadControl, GrowsUpToWhatItMayWhileBatchesAreWaitedFor) {
  ReadAheadControl control(8, 16);
  EXPECT_EQ(note_all(control, 3, 0), (Size{2, 6}));
  EXPECT_EQ(note_all(control, 50, 0), (Size{3, 8}));
  EXPECT_EQ(note_all(control, 50, 0), (Size{4, 10}));
  EXPECT_EQ(note_all(control, 50, 0), (Size{6, 14}));
  EXPECT_EQ(note_all(control, 50, 0), (Size{8, 16}));
  EXPECT_EQ(note_all(control, 99, 0), (Size{8, 16}));
}

TEST(ReadAheadControl, LooksAtEightBatchesTogether) {
  ReadAheadControl control(8, 16);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(control.note(90, 100, 0), (Size{1, 4}));
  EXPECT_EQ(control.note(90, 100, 0), (Size{2, 6}));
}

TEST(ReadAheadControl, LetsThreadsRestIfAllIsReadyAndThenMoreRarely) {
  ReadAheadControl control(8, 16);
  note_all(control, 50, 0);
  ASSERT_EQ(note_all(control, 50, 0), (Size{3, 8}));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(note_all(control, 0, 8).threads, 3);
  EXPECT_EQ(note_all(control, 0, 8).threads, 2);
  EXPECT_EQ(note_all(control, 50, 0).threads, 3);  // two were too few
  for (int i = 0; i < 7; ++i) EXPECT_EQ(note_all(control, 0, 8).threads, 3);
  EXPECT_EQ(note_all(control, 0, 8).threads, 2);
}

TEST(ReadAheadControl, LetsNoThreadRestWhileBatchesAreOnTheirWay) {
  ReadAheadControl control(4, 16);
  note_all(control, 50, 0);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(note_all(control, 1, 2).threads, 2);
}

TEST(ReadAheadControl, KeepsToSmallLimits) {
  ReadAheadControl control(1, 2);
  EXPECT_EQ(control.size(), (Size{1, 2}));
  EXPECT_EQ(note_all(control, 90, 0), (Size{1, 2}));
}

}  // namespace
}  // namespace lockstep::data
