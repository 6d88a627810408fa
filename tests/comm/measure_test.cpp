#include "comm/measure.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace lockstep::comm {
namespace {

constexpr MeasureOptions kQuick{.long_message_bytes = 4096, .seconds = 1e-4};

/// What each rank of a group of threads has measured.
template <class Result>
std::vector<Result> on_ranks(int size, const auto& measure) {
  const auto communicators = make_local_communicators(size);
  std::vector<Result> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < results.size(); ++rank)
    threads.emplace_back([&, rank] {
      const auto device = device::make_cpu_device();
      const auto stream = device->create_stream("measure");
      results[rank] = measure(*communicators[rank], *stream);
    });
  for (std::thread& thread : threads) thread.join();
  return results;
}

TEST(Measure, EveryRankKnowsTheTimesOfAllPairs) {
  const auto results = on_ranks<std::vector<PairTimes>>(3, [](Communicator& world, device::Stream& stream) {
    return measure_pairs(world, stream, {1, 2}, kQuick);
  });
  ASSERT_EQ(results[0].size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(results[0][i].peer, static_cast<int>(i) + 1);
    EXPECT_GT(results[0][i].latency, 0);
    EXPECT_GT(results[0][i].one_way_per_byte, 0);
    EXPECT_GT(results[0][i].both_ways_per_byte, 0);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Measure, SumsHaveTheirSizes) {
  const auto results = on_ranks<std::vector<SumTime>>(2, [](Communicator& world, device::Stream& stream) {
    return measure_sums(world, stream, {8, 1024}, kQuick);
  });
  ASSERT_EQ(results[0].size(), 2u);
  EXPECT_EQ(results[0][0].bytes, 8);
  EXPECT_EQ(results[0][1].bytes, 1024);
  EXPECT_GT(results[0][0].seconds, 0);
  EXPECT_EQ(results[0], results[1]);
}

TEST(Measure, OneProcessSendsNothing) {
  const auto world = make_solo_communicator();
  const auto device = device::make_cpu_device();
  const auto stream = device->create_stream("measure");
  EXPECT_TRUE(measure_pairs(*world, *stream, {}, kQuick).empty());
  EXPECT_GT(measure_addition(), 0);
  EXPECT_GT(measure_copying(1 << 16), 0);
}

}  // namespace
}  // namespace lockstep::comm
