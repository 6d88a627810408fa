#include "train/start/long_work.h"

#include <gtest/gtest.h>

#include <atomic>

#include "train/thread_ranks.h"

namespace lockstep::train {
namespace {

TEST(LongWork, IsWaitedForAsLongAsItGetsOn) {
  for (const int words : {0, 1, 7}) {
    std::atomic<bool> is_done = false;
    std::atomic<int> came_early = 0;
    run_ranks(3, [&](int rank, comm::Communicator& world) {
      LongWork work(world, {.between_words = {}});
      if (rank == 0) {
        for (int word = 0; word < words; ++word) work.gets_on();
        is_done = true;
      }
      work.done();
      if (!is_done) ++came_early;
    });
    EXPECT_EQ(came_early, 0) << words << " words";
  }
}

}  // namespace
}  // namespace lockstep::train
