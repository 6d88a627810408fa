// The shared-memory communicator with threads as ranks.

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <array>
#include <cstring>

#include "base/half.h"
#include "comm/conformance.h"
#include "comm/shared_support.h"
#include "mentions.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Shared : public testing::TestWithParam<std::tuple<int, ConformanceCheck>> {};

TEST_P(Shared, Conforms) { run_shared(std::get<0>(GetParam()), {}, std::get<1>(GetParam()).run); }

/// Chunks so small that every message takes many, and an odd number of bytes.
class SharedInSmallChunks : public testing::TestWithParam<std::tuple<int, ConformanceCheck>> {};

TEST_P(SharedInSmallChunks, Conforms) {
  run_shared(std::get<0>(GetParam()), {.chunk_bytes = 65'537}, std::get<1>(GetParam()).run);
}

std::string name_of_check(const testing::TestParamInfo<std::tuple<int, ConformanceCheck>>& info) {
  return std::string(std::get<1>(info.param).name) + std::to_string(std::get<0>(info.param));
}
auto values_in(std::span<const ConformanceCheck> checks) {
  return testing::ValuesIn(checks.begin(), checks.end());
}
INSTANTIATE_TEST_SUITE_P(Checks, Shared,
                         testing::Combine(testing::Values(1, 2, 3, 5), values_in(conformance_checks())),
                         name_of_check);
INSTANTIATE_TEST_SUITE_P(Collectives, SharedInSmallChunks,
                         testing::Combine(testing::Values(3), values_in(collective_checks())), name_of_check);
INSTANTIATE_TEST_SUITE_P(Exchanges, SharedInSmallChunks,
                         testing::Combine(testing::Values(2, 4), values_in(exchange_checks())),
                         name_of_check);

// Near 1e8, neighbouring floats lie 8 apart; so every order of these summands has another result.
constexpr std::array<float, 8> kSummands = {1e8f, 3.0f, -1e8f, 5.0f, 7.0f, 1e8f, -1e8f, 11.0f};
/// Along the tree over the first 1, 2, ... 8 of them. (1e8 + 3) is 1e8, (-1e8 + 5) is -99999992, (7 + 1e8) is
/// 100000008,
/// (-1e8 + 11) is -99999992; so four give 8, where adding one by one gives 5.
constexpr std::array<float, 8> kTreeSums = {1e8f,        1e8f,         0.0f,        8.0f,
                                            8.0f + 7.0f, 100000016.0f, 8.0f + 8.0f, 8.0f + 16.0f};

/// Powers of two change no rounding: element i is the sum above times 2 ^ (i % 5).
float scale_of(int64_t index) { return static_cast<float>(1 << (index % 5)); }

struct Sums {
  int size;
  int64_t chunk_bytes, count;
  int64_t misaligned_by;
};

void expect_tree_sums(const Sums& sums) {
  run_shared(sums.size, {.chunk_bytes = sums.chunk_bytes}, [&](Communicator& world) {
    EXPECT_TRUE(world.sums_along_tree());
    HostStream stream;
    std::vector<std::byte> buffer(static_cast<size_t>(sums.count * 4 + sums.misaligned_by));
    std::byte* const data = buffer.data() + sums.misaligned_by;
    for (int64_t i = 0; i < sums.count; ++i) {
      const float value = kSummands[static_cast<size_t>(world.rank())] * scale_of(i);
      std::memcpy(data + i * 4, &value, 4);
    }
    world.all_reduce(data, sums.count, DType::float32, ReduceOp::sum, stream);
    world.synchronize(stream, patience());
    int64_t wrong = 0;
    for (int64_t i = 0; i < sums.count; ++i) {
      float value = 0;
      std::memcpy(&value, data + i * 4, 4);
      wrong += value != kTreeSums[static_cast<size_t>(world.size() - 1)] * scale_of(i);
    }
    EXPECT_EQ(wrong, 0) << world.size() << " ranks, " << sums.count << " elements, chunks of "
                        << sums.chunk_bytes << " bytes, misaligned by " << sums.misaligned_by;
  });
}

TEST(SharedCommunicator, SumsAlongTheTreeOverOneToEightRanks) {
  for (int size = 1; size <= 8; ++size)
    for (const int64_t count : {1, 1000, 100'003}) expect_tree_sums({size, 0, count, 0});
}

TEST(SharedCommunicator, SumsAlongTheTreeWhateverTheChunks) {
  for (const int size : {2, 3, 8})
    for (const int64_t chunk_bytes : {1, 4, 12, 100, 4096})
      for (const int64_t count : {1, 77, 257}) expect_tree_sums({size, chunk_bytes, count, 0});
}

TEST(SharedCommunicator, SumsAlongTheTreeWhereverTheDataLies) {
  for (const int size : {2, 7})
    for (const int64_t misaligned_by : {1, 2, 3, 4, 20})
      for (const int64_t count : {2011, 20'011}) expect_tree_sums({size, 0, count, misaligned_by});
}

TEST(SharedCommunicator, RoundsEverySumOfTwoBytes) {
  // At 256 neighbouring bfloat16 lie 2 apart; of two as near, the one with an even fraction is taken.
  constexpr std::array<float, 8> summands = {256, 1, 0, 3, 1, 1, 1, 1},
                                 sums = {256, 256, 256, 260, 260, 262, 264, 264};
  for (int size = 1; size <= 8; ++size)
    for (const int64_t chunk_bytes : {0, 2, 100})
      for (const size_t misaligned_by : {size_t{0}, size_t{1}})
        run_shared(size, {.chunk_bytes = chunk_bytes}, [&](Communicator& world) {
          constexpr size_t kCount = 333;
          HostStream stream;
          std::vector<std::byte> buffer(2 * kCount + misaligned_by);
          for (size_t i = 0; i < kCount; ++i) {
            const bfloat16 value(summands[static_cast<size_t>(world.rank())] *
                                 scale_of(static_cast<int64_t>(i)));
            std::memcpy(&buffer[misaligned_by + 2 * i], &value, 2);
          }
          world.all_reduce(&buffer[misaligned_by], kCount, DType::bfloat16, ReduceOp::sum, stream);
          world.synchronize(stream, patience());
          for (size_t i = 0; i < kCount; ++i) {
            bfloat16 value;
            std::memcpy(&value, &buffer[misaligned_by + 2 * i], 2);
            ASSERT_EQ(static_cast<float>(value),
                      sums[static_cast<size_t>(world.size() - 1)] * scale_of(static_cast<int64_t>(i)))
                << world.size() << " ranks, element " << i;
          }
        });
}

TEST(SharedCommunicator, TellsAllThatCollectivesDiffer) {
  run_shared(3, {}, [](Communicator& world) {
    HostStream stream;
    std::array<float, 4> data{};
    EXPECT_THAT(comm_error_of([&] {
                  world.all_reduce(data.data(), world.rank() == 2 ? 3 : 4, DType::float32, ReduceOp::sum,
                                   stream);
                  world.synchronize(stream, patience());
                }),
                AllOf(HasSubstr("collectives"), HasSubstr("all_reduce of 4 float32 (sum)"),
                      HasSubstr("rank 2 started all_reduce of 3 float32 (sum)")));
  });
}

/// Of one round, and of many more than there are slots.
TEST(SharedCommunicator, TellsAllThatTwoRanksTakeThemselvesForTheRoot) {
  for (const int64_t size_bytes : {4, 10'000})
    run_shared(2, {.chunk_bytes = 64}, [&](Communicator& world) {
      HostStream stream;
      std::vector<std::byte> data(static_cast<size_t>(size_bytes));
      EXPECT_THAT(comm_error_of([&] {
                    world.broadcast(data.data(), size_bytes, world.rank(), stream);
                    world.synchronize(stream, patience());
                  }),
                  HasSubstr("collectives"))
          << size_bytes;
    });
}

TEST(SharedCommunicator, TheRootOfABroadcastNamesTheRanksThatHaveNotCome) {
  run_shared(3, {}, [](Communicator& world) {
    HostStream stream;
    int32_t value = 0;
    if (world.rank() == 2) return;
    world.broadcast(&value, 4, 0, stream);
    const auto wait = [&] { world.synchronize(stream, world.rank() == 0 ? soon() : patience()); };
    if (world.rank() == 0) {
      EXPECT_THAT(comm_error_of(wait), HasSubstr("rank 2"));
    } else {
      wait();
    }
  });
}

TEST(SharedCommunicator, TellsTheSenderThatWaitsThatSizesDiffer) {
  run_shared(2, {.chunk_bytes = 64}, [](Communicator& world) {
    HostStream stream;
    std::vector<std::byte> data(10'000);  // more than is buffered
    EXPECT_THAT(comm_error_of([&] {
                  world.exchange(std::array{world.rank() == 0 ? send_to(1, data.data(), 10'000)
                                                              : receive_from(0, data.data(), 9'999)},
                                 stream);
                  world.synchronize(stream, patience());
                }),
                Mentions("rank 0 ... 10000 bytes ... rank 1 ... 9999 bytes"));
  });
}

TEST(SharedCommunicator, AbortReachesAllWithTheReason) {
  run_shared(4, {}, [](Communicator& world) {
    HostStream stream;
    if (world.rank() == 3) return world.abort("rank 3 ran out of data");
    const auto call = [&] {
      world.barrier(stream);
      world.synchronize(stream, patience());
    };
    EXPECT_THAT(comm_error_of(call), HasSubstr("rank 3"));
    EXPECT_THAT(comm_error_of(call), HasSubstr("rank 3"));
  });
}

TEST(SharedCommunicator, AbortEndsASplitThatNotAllRanksEnter) {
  run_shared(2, {}, [](Communicator& world) {
    if (world.rank() == 1) return world.abort("no split today");
    EXPECT_THAT(comm_error_of([&] { world.split(0, 0); }), HasSubstr("no split today"));
  });
}

TEST(SharedCommunicator, GoingAwayWithOperationsOutstandingIsAnErrorOfTheOthers) {
  run_group(2, [](Communicator& group) {
    HostStream stream;
    auto world = make_shared_memory_communicator(group);
    int32_t value = 0;
    if (world->rank() == 0) {
      world->exchange(std::array{receive_from(1, &value, 4)}, stream);
      return world.reset();
    }
    EXPECT_THAT(comm_error_of([&] {
                  world->barrier(stream);
                  world->synchronize(stream, patience());
                }),
                HasSubstr("rank 0"));
  });
}

TEST(SharedCommunicator, NamesTheRanksThatHaveNotCome) {
  run_shared(3, {}, [](Communicator& world) {
    HostStream stream;
    if (world.rank() != 0) return;
    world.barrier(stream);
    EXPECT_THAT(comm_error_of([&] { world.synchronize(stream, soon()); }), Mentions("rank 1 ... rank 2"));
  });
}

TEST(SharedCommunicator, LeavesNothingInDevShm) {
  run_shared(3, {}, [](Communicator& world) {
    HostStream stream;
    const auto part = world.split(0, world.rank());
    part->barrier(stream);  // rank 0 takes the name away before it comes here
    part->synchronize(stream, patience());
    EXPECT_THAT(left_in_dev_shm(), IsEmpty());
  });
  EXPECT_THAT(left_in_dev_shm(), IsEmpty());
}

/// More than a hundred petabytes for each rank: no machine has them.
TEST(SharedCommunicator, TellsAllRanksThatThereIsTooLittleSharedMemory) {
  run_group(3, [](Communicator& group) {
    EXPECT_THAT(
        comm_error_of([&] { make_shared_memory_communicator(group, {.chunk_bytes = int64_t{1} << 57}); }),
        AllOf(Mentions("rank 0 ... 3"), HasSubstr("/dev/shm"), HasSubstr("--shm-size")));
  });
  EXPECT_THAT(left_in_dev_shm(), IsEmpty());
}

TEST(SharedCommunicator, TellsAllRanksThatFilesMayNotBeSoLarge) {
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const struct rlimit small { 1 << 20, before.rlim_max };
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  run_group(2, [](Communicator& group) {
    EXPECT_THAT(comm_error_of([&] { make_shared_memory_communicator(group); }), HasSubstr("1.00 MiB"));
  });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST(SharedCommunicator, RefusesNegativeChunks) {
  run_group(1, [](Communicator& group) {
    EXPECT_THROW(make_shared_memory_communicator(group, {.chunk_bytes = -1}), ConfigError);
  });
}

}  // namespace
}  // namespace lockstep::comm
