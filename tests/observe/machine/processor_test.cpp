#include "observe/machine/processor.h"

#include <gtest/gtest.h>

namespace lockstep::observe {
namespace {

TEST(Processor, OfAHostIsTheSumOfItsTicks) {
  const auto time = host_processor_time(
      "cpu  100 20 30 400 50 6 7 8 90 10\ncpu0 50 10 15 200 25 3 3 4 45 5\ncpu1 50 10 15 200 25 3 4 4 45 5\n"
      "intr 1 2 3\nctxt 17\n",
      100);
  ASSERT_TRUE(time);
  EXPECT_DOUBLE_EQ(time->total, 6.21);  // guests are counted as users already
  EXPECT_DOUBLE_EQ(time->idle, 4.5);
  EXPECT_DOUBLE_EQ(time->waiting_for_disk, 0.5);
  EXPECT_EQ(time->cores, 2);
}

TEST(Processor, OfAHostIsAbsentIfTheTextIsSomethingElse) {
  EXPECT_FALSE(host_processor_time("", 100));
  EXPECT_FALSE(host_processor_time("cpu  1 2\n", 100));
  EXPECT_FALSE(host_processor_time("cpu  1 2 3 x 5 6\n", 100));
}

TEST(Processor, OfAProcessIsItsUserAndSystemTime) {
  EXPECT_EQ(process_processor_seconds(
                "17 (a) b (c) S 1 17 17 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 12345 1000 10\n", 100),
            3);
  EXPECT_FALSE(process_processor_seconds("", 100));
  EXPECT_FALSE(process_processor_seconds("17 (a) S 1 17", 100));
}

}  // namespace
}  // namespace lockstep::observe
