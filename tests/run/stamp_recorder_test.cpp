#include "run/stamp_recorder.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace lockstep::run {
namespace {

TEST(StampRecorder, WantsNothingBeforeItIsOpened) {
  const StampRecorder recorder;
  EXPECT_FALSE(recorder.wants(0));
  EXPECT_TRUE(recorder.stamps().empty());
}

TEST(StampRecorder, WantsTheIterationsThatItWasOpenedFor) {
  StampRecorder recorder;
  recorder.open(5, 2, 10);
  EXPECT_FALSE(recorder.wants(4));
  EXPECT_TRUE(recorder.wants(5));
  EXPECT_TRUE(recorder.wants(6));
  EXPECT_FALSE(recorder.wants(7));
}

TEST(StampRecorder, CountsWhatItHasNoRoomFor) {
  StampRecorder recorder;
  recorder.open(0, 1, 2);
  for (int i = 0; i < 5; ++i) recorder.add({.instruction = i});
  ASSERT_EQ(recorder.stamps().size(), 2U);
  EXPECT_EQ(recorder.stamps()[1].instruction, 1);
  EXPECT_EQ(recorder.dropped(), 3U);
}

TEST(StampRecorder, TakesStampsOfSeveralThreads) {
  StampRecorder recorder;
  recorder.open(0, 1, 4000);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&recorder, thread] {
      for (int i = 0; i < 1000; ++i) recorder.add({.instruction = 1000 * thread + i});
    });
  for (int i = 0; i < 100; ++i) recorder.stamps();  // a watchdog may look meanwhile
  for (auto& thread : threads) thread.join();
  std::vector<bool> seen(4000);
  for (const Stamp& stamp : recorder.stamps()) seen[static_cast<size_t>(stamp.instruction)] = true;
  EXPECT_EQ(seen, std::vector<bool>(4000, true));
  EXPECT_EQ(recorder.dropped(), 0U);
}

}  // namespace
}  // namespace lockstep::run
