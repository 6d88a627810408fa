#include "comm/clock_offset.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

namespace lockstep::comm {
namespace {

constexpr std::chrono::seconds kTimeout{30};

std::vector<ClockOffset> offsets_of(int ranks, const std::vector<std::string>& identities) {
  auto worlds = make_local_communicators(ranks);
  std::vector<ClockOffset> offsets(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (auto& world : worlds)
    threads.emplace_back([&] {
      const auto rank = static_cast<size_t>(world->rank());
      offsets[rank] = measure_clock_offset(*world, identities[rank], kTimeout);
    });
  for (auto& thread : threads) thread.join();
  return offsets;
}

TEST(ClockOffset, OfTheSameClockIsNothing) {
  for (const ClockOffset& offset : offsets_of(3, {"a", "a", "a"})) {
    EXPECT_EQ(offset.offset_us, 0);
    EXPECT_EQ(offset.error_us, 0);
  }
}

// Threads have one clock, whatever their identity says: what is measured must be 0 to within the error.
TEST(ClockOffset, OfAnotherClockIsRightToItsError) {
  const auto offsets = offsets_of(4, {"a", "b", "a", "c"});
  for (const size_t rank : {1, 3}) {
    EXPECT_GT(offsets[rank].error_us, 0);
    EXPECT_LE(std::abs(offsets[rank].offset_us), offsets[rank].error_us);
  }
  EXPECT_EQ(offsets[0].error_us, 0);
  EXPECT_EQ(offsets[2].error_us, 0);
}

TEST(ClockOffset, IsMeasuredIfNobodyKnowsTheClock) { EXPECT_GT(offsets_of(2, {"", ""})[1].error_us, 0); }

TEST(ClockOffset, EveryProcessOfThisSystemReadsOneClock) {
  EXPECT_FALSE(clock_identity().empty());
  EXPECT_EQ(clock_identity(), clock_identity());
}

}  // namespace
}  // namespace lockstep::comm
