#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <mutex>
#include <thread>

#include "base/half.h"
#include "comm/conformance.h"
#include "comm/conformance_support.h"
#include "mentions.h"

namespace lockstep::comm {
namespace {

using ::testing::HasSubstr;

/// Runs `body` on one thread for each rank of a new world.
void run_world(int size, const std::function<void(Communicator&)>& body) {
  auto ranks = make_local_communicators(size);
  std::vector<std::thread> threads;
  for (auto& comm : ranks)
    threads.emplace_back([&body, &comm] {
      try {
        body(*comm);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
        comm->abort("another rank's test failed");
      }
    });
  for (auto& thread : threads) thread.join();
}

class Local : public testing::TestWithParam<std::tuple<int, ConformanceCheck>> {};

TEST_P(Local, Conforms) { run_world(std::get<0>(GetParam()), std::get<1>(GetParam()).run); }

INSTANTIATE_TEST_SUITE_P(Checks, Local,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5),
                                          testing::ValuesIn(conformance_checks().begin(),
                                                            conformance_checks().end())),
                         [](const auto& info) {
                           return std::string(std::get<1>(info.param).name) +
                                  std::to_string(std::get<0>(info.param));
                         });

/// Rank r contributes the r-th value; everyone's sum.
float sum_over_ranks(const std::vector<float>& values) {
  std::vector<float> sums = values;
  run_world(static_cast<int>(values.size()), [&](Communicator& world) {
    HostStream stream;
    EXPECT_TRUE(world.sums_along_tree());
    world.all_reduce(&sums[static_cast<size_t>(world.rank())], 1, DType::float32, ReduceOp::sum, stream);
    world.synchronize(stream, soon());
  });
  for (const float sum : sums) EXPECT_EQ(sum, sums[0]);
  return sums[0];
}

TEST(LocalCommunicator, RegroupNeedsNothingOfOthers) {
  for (const int ranks : {2, 3, 5}) run_world(ranks, regroup_needs_nothing_of_others);
}

TEST(LocalCommunicator, SumsAlongTheCanonicalTree) {
  // Beside 1e8 a float32 sees steps of 8: a 1 is lost, two 4 count together and not one after the other.
  EXPECT_EQ(sum_over_ranks({1, 1e8f, -1e8f}), 0.0f);               // (1 + 1e8) - 1e8
  EXPECT_EQ(sum_over_ranks({1e8f, 1, -1e8f, 1}), 0.0f);            // (1e8 + 1) + (-1e8 + 1); in a row 1
  EXPECT_EQ(sum_over_ranks({1e8f, 1, -1e8f, 1, 0.5f}), 0.5f);      // the fifth comes last
  EXPECT_EQ(sum_over_ranks({1e8f, 0, 0, 0, 4, 4}), 100000008.0f);  // (4 + 4) first; in a row 1e8
  EXPECT_EQ(sum_over_ranks({0, 0, 1e8f, 0, 4, 4, -1e8f}), 8.0f);   // 1e8 + ((4 + 4) - 1e8); in a row 0
}

TEST(LocalCommunicator, RoundsEverySumOfTwoBytes) {
  // A bfloat16 has 8 bits: 256 + 1 is 256, and so is 256 + 1 after that; 1 + 1 before it counts.
  const auto sum = [](const std::vector<float>& values) {
    std::vector<bfloat16> sums;
    for (const float value : values) sums.emplace_back(value);
    run_world(static_cast<int>(values.size()), [&](Communicator& world) {
      HostStream stream;
      world.all_reduce(&sums[static_cast<size_t>(world.rank())], 1, DType::bfloat16, ReduceOp::sum, stream);
      world.synchronize(stream, soon());
    });
    return static_cast<float>(sums.back());
  };
  EXPECT_EQ(sum({256, 1}), 256);
  EXPECT_EQ(sum({256, 1, 1}), 256);
  EXPECT_EQ(sum({256, 0, 1, 1}), 258);
  EXPECT_EQ(sum({256, 1, 1, 1}), 258);
}

TEST(LocalCommunicator, BuffersNothing) {
  // Both send before they receive: passes in MPI as long as messages are small.
  std::atomic<int> hung = 0;
  run_world(2, [&](Communicator& world) {
    HostStream stream;
    const int peer = 1 - world.rank();
    int32_t out = 1, in = 0;
    EXPECT_FALSE(comm_error_of([&] {
                   world.exchange(std::array{send_to(peer, &out, 4)}, stream);
                   world.synchronize(stream, soon());
                   world.exchange(std::array{receive_from(peer, &in, 4)}, stream);
                   world.synchronize(stream, soon());
                 }).empty());
    hung += in == 0;
  });
  EXPECT_EQ(hung, 2);
}

TEST(LocalCommunicator, RunsOneOperationAtATime) {
  // Both post a send and then a receive without waiting: a stream of NCCL calls would stand still as well.
  run_world(2, [&](Communicator& world) {
    HostStream stream;
    const int peer = 1 - world.rank();
    int32_t out = 1, in = 0;
    EXPECT_THAT(comm_error_of([&] {
                  world.exchange(std::array{send_to(peer, &out, 4)}, stream);
                  world.exchange(std::array{receive_from(peer, &in, 4)}, stream);
                  world.synchronize(stream, soon());
                }),
                HasSubstr("4 bytes"));
    EXPECT_EQ(in, 0);
  });
}

TEST(LocalCommunicator, TellsBothSidesThatSizesDiffer) {
  run_world(2, [](Communicator& world) {
    HostStream stream;
    std::array<std::byte, 16> data{};
    EXPECT_THAT(comm_error_of([&] {
                  const auto transfer =
                      world.rank() == 0 ? send_to(1, data.data(), 16) : receive_from(0, data.data(), 12);
                  world.exchange(std::array{transfer}, stream);
                  world.synchronize(stream, patience());
                }),
                Mentions("rank 0 ... 16 bytes ... rank 1 ... 12 bytes"));
  });
}

TEST(LocalCommunicator, TellsAllThatCollectivesDiffer) {
  run_world(3, [](Communicator& world) {
    HostStream stream;
    std::array<float, 4> data{};
    EXPECT_THAT(comm_error_of([&] {
                  world.all_reduce(data.data(), world.rank() == 2 ? 3 : 4, DType::float32, ReduceOp::sum,
                                   stream);
                  world.synchronize(stream, patience());
                }),
                Mentions("rank 0 ... all_reduce ... 4 float32 ... rank 2 ... all_reduce ... 3 float32"));
  });
}

TEST(LocalCommunicator, AbortWakesTheOthersWithTheReason) {
  run_world(4, [](Communicator& world) {
    HostStream stream;
    if (world.rank() == 3) return world.abort("rank 3 ran out of data");
    EXPECT_THAT(comm_error_of([&] {
                  world.barrier(stream);
                  world.synchronize(stream, patience());
                }),
                HasSubstr("rank 3"));
  });
}

TEST(LocalCommunicator, AbortEndsASplitThatNotAllRanksEnter) {
  run_world(2, [](Communicator& world) {
    if (world.rank() == 1) return world.abort("no split today");
    EXPECT_THAT(comm_error_of([&] { world.split(0, 0); }), HasSubstr("no split today"));
  });
}

TEST(LocalCommunicator, NamesTheRanksThatHaveNotEntered) {
  run_world(3, [](Communicator& world) {
    HostStream stream;
    if (world.rank() != 0) return;
    world.barrier(stream);
    const std::string message = comm_error_of([&] { world.synchronize(stream, soon()); });
    EXPECT_THAT(message, Mentions("rank 1 ... rank 2"));
  });
}

TEST(LocalCommunicator, GoingAwayWithBuffersInUseIsAnErrorOfTheOthers) {
  auto ranks = make_local_communicators(2);
  HostStream stream;
  int32_t value = 0;
  ranks[0]->exchange(std::array{send_to(1, &value, 4)}, stream);
  ranks[0].reset();
  EXPECT_THAT(comm_error_of([&] { ranks[1]->test(); }), HasSubstr("rank 0"));
}

TEST(LocalCommunicator, NeedsARank) { EXPECT_THROW(make_local_communicators(0), ConfigError); }

}  // namespace
}  // namespace lockstep::comm
