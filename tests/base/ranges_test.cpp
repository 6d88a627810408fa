#include "base/ranges.h"

#include <gtest/gtest.h>

#include <csignal>
#include <latch>
#include <mutex>
#include <numeric>
#include <set>
#include <vector>

namespace lockstep {
namespace {

TEST(Ranges, TogetherAreTheWhole) {
  for (const int64_t count : {0, 1, 9, 10, 11, 1000, 1003})
    for (const int threads : {0, 1, 2, 5, 200}) {
      std::vector<int> visits(static_cast<size_t>(count));
      std::atomic<int64_t> longest = 0;
      for_ranges(count, 10, threads, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        int64_t seen = longest;
        while (seen < end - begin && !longest.compare_exchange_weak(seen, end - begin)) {
        }
      });
      EXPECT_EQ(visits, std::vector<int>(static_cast<size_t>(count), 1)) << count << " on " << threads;
      EXPECT_LE(longest, 10);
    }
}

// Each of the four ranges waits for the three others, so that one thread cannot do two of them.
TEST(Ranges, RunAtOnceOnAsManyThreadsAsAskedFor) {
  std::latch all(4);
  std::mutex mutex;
  std::set<std::thread::id> ids;
  for_ranges(4, 1, 4, [&](int64_t, int64_t) {
    all.arrive_and_wait();
    const std::lock_guard lock(mutex);
    ids.insert(std::this_thread::get_id());
  });
  EXPECT_EQ(ids.size(), 4u);
  EXPECT_TRUE(ids.contains(std::this_thread::get_id())) << "the caller works too";
}

TEST(Ranges, LittleWorkStaysOnTheCallingThread) {
  for_ranges(10, 10, 8, [&, caller = std::this_thread::get_id()](int64_t begin, int64_t end) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(end, 10);
  });
}

}  // namespace
}  // namespace lockstep
