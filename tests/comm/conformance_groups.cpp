#include <array>
#include <thread>

#include "comm/conformance.h"
#include "comm/conformance_support.h"

namespace lockstep::comm {
namespace {

int32_t sum_over(Communicator& comm, int32_t value) {
  HostStream stream;
  comm.all_reduce(&value, 1, DType::int32, ReduceOp::sum, stream);
  comm.synchronize(stream, patience());
  return value;
}

void split_by_color(Communicator& world) {
  const int rank = world.rank(), size = world.size();
  const auto part = world.split(rank % 2, rank);
  ASSERT_NE(part, nullptr);
  EXPECT_EQ(part->size(), rank % 2 == 0 ? (size + 1) / 2 : size / 2);
  EXPECT_EQ(part->rank(), rank / 2);
  EXPECT_EQ(part->backend(), world.backend());
  const int32_t even[] = {1, 1, 1 + 3, 1 + 3, 1 + 3 + 5}, odd[] = {0, 2, 2, 2 + 4, 2 + 4};  // of rank + 1
  EXPECT_EQ(sum_over(*part, rank + 1), rank % 2 == 0 ? even[size - 1] : odd[size - 1]);
}

void split_orders_by_key_then_by_old_rank(Communicator& world) {
  const int rank = world.rank(), size = world.size();
  const auto reversed = world.split(7, -rank);
  ASSERT_NE(reversed, nullptr);
  EXPECT_EQ(reversed->rank(), size - 1 - rank);
  const auto same = world.split(0, 5);
  ASSERT_NE(same, nullptr);
  EXPECT_EQ(same->rank(), rank);
}

void split_with_negative_color_gives_null(Communicator& world) {
  const int rank = world.rank(), size = world.size();
  const auto part = world.split(rank == 0 ? -1 : 3, rank);
  EXPECT_EQ(part == nullptr, rank == 0);
  if (part != nullptr) {
    EXPECT_EQ(part->size(), size - 1);
    EXPECT_EQ(sum_over(*part, 1), size - 1);
  }
}

void split_of_a_split(Communicator& world) {
  const int rank = world.rank();
  const auto half = world.split(rank / 2, rank);
  ASSERT_NE(half, nullptr);
  const auto alone = half->split(half->rank(), 0);
  ASSERT_NE(alone, nullptr);
  EXPECT_EQ(alone->size(), 1);
  EXPECT_EQ(sum_over(*alone, 11), 11);
}

void a_communicator_outlives_the_one_it_came_from(Communicator& world) {
  auto middle = world.split(0, world.rank());
  const auto last = middle->split(0, world.rank());
  middle.reset();
  EXPECT_EQ(sum_over(*last, 2), 2 * world.size());
}

/// Operations of several communicators run beside each other in any order. Those of one GPU start in the
/// order in which its rank issues them, which has to be the same on all ranks: programs are proven for that.
bool run_in_any_order(const Communicator& world) { return world.backend() != "nccl"; }

/// Even ranks start A before B, odd ranks B before A. Each communicator alone is consistent, so both
/// complete, and with their own data.
void traffic_of_communicators_never_mixes(Communicator& world) {
  const int rank = world.rank(), size = world.size();
  HostStream stream;
  const auto a = world.split(0, rank), b = world.split(0, rank);
  std::array<int32_t, 2> sums{1, 100};
  std::array<int32_t, 2> in{}, out{rank, 1000 + rank};
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  const auto start = [&](Communicator& comm, size_t which) {
    comm.all_reduce(&sums[which], 1, DType::int32, ReduceOp::sum, stream);
    if (size > 1)
      comm.exchange(std::array{send_to(next, &out[which], 4), receive_from(previous, &in[which], 4)}, stream);
  };
  if (rank % 2 == 0 || !run_in_any_order(world)) {
    start(*a, 0);
    start(*b, 1);
  } else {
    start(*b, 1);
    start(*a, 0);
  }
  if (rank % 3 == 0) {
    a->synchronize(stream, patience());
    b->synchronize(stream, patience());
  } else {
    const Deadline deadline = patience();  // whichever comes first
    bool a_done = false, b_done = false;
    while (!(a_done && b_done)) {
      a_done = a->test();
      b_done = b->test();
      ASSERT_LT(Clock::now(), deadline);
    }
  }
  EXPECT_EQ(sums, (std::array<int32_t, 2>{size, 100 * size}));
  if (size > 1) {
    EXPECT_EQ(in, (std::array<int32_t, 2>{previous, 1000 + previous}));
  }
}

/// A thread for each communicator, as where every lane has a core.
void communicators_work_from_threads_of_their_own(Communicator& world) {
  const int rank = world.rank(), size = world.size();
  std::vector<std::unique_ptr<Communicator>> lanes;
  for (int lane = 0; lane < 3; ++lane) lanes.push_back(world.split(0, rank));
  std::array<int32_t, 3> last{};
  std::vector<std::thread> threads;
  for (size_t lane = 0; lane < 3; ++lane) {
    threads.emplace_back([&, lane] {
      try {
        for (int32_t i = 0; i < 50; ++i) last[lane] = sum_over(*lanes[lane], i + static_cast<int32_t>(lane));
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    });
    if (!run_in_any_order(world)) threads.back().join();
  }
  for (auto& thread : threads)
    if (thread.joinable()) thread.join();
  EXPECT_EQ(last, (std::array<int32_t, 3>{49 * size, 50 * size, 51 * size}));
}

constexpr ConformanceCheck kGroups[] = {
    {"SplitByColor", split_by_color},
    {"SplitOrdersByKeyThenByOldRank", split_orders_by_key_then_by_old_rank},
    {"SplitWithNegativeColorGivesNull", split_with_negative_color_gives_null},
    {"SplitOfASplit", split_of_a_split},
    {"ACommunicatorOutlivesTheOneItCameFrom", a_communicator_outlives_the_one_it_came_from},
    {"TrafficOfCommunicatorsNeverMixes", traffic_of_communicators_never_mixes},
    {"CommunicatorsWorkFromThreadsOfTheirOwn", communicators_work_from_threads_of_their_own},
};

}  // namespace

void regroup_needs_nothing_of_others(Communicator& world) {
  const int size = world.size();
  // In two ways at once, as if two had been lost one after the other. Whoever is left out does nothing.
  std::vector<std::unique_ptr<Communicator>> fewer;
  for (const int out : {0, size - 1}) {
    std::vector<int> members;
    for (int rank = 0; rank < size; ++rank)
      if (rank != out) members.push_back(rank);
    if (world.rank() == out) continue;
    fewer.push_back(world.regroup(members));
    EXPECT_EQ(fewer.back()->size(), size - 1);
    EXPECT_EQ(fewer.back()->rank(), std::ranges::find(members, world.rank()) - members.begin());
  }
  for (const auto& each : fewer) {
    EXPECT_EQ(sum_over(*each, 1), size - 1);
    EXPECT_EQ(sum_over(*each->split(0, 0), 1), size - 1);
    EXPECT_EQ(each->open_port()->size(), size - 1);
  }
}

std::span<const ConformanceCheck> group_checks() { return kGroups; }

}  // namespace lockstep::comm
