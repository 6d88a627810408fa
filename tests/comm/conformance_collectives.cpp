#include <algorithm>
#include <numeric>

#include "comm/conformance.h"
#include "comm/conformance_support.h"

namespace lockstep::comm {
namespace {

// Zero, one, odd, prime, and a few megabytes with an odd tail: several chunks of shared memory, of which
// ThreadSanitizer, under which elements take ten times as long, sees fewer.
#ifdef __SANITIZE_THREAD__
constexpr int64_t kCounts[] = {0, 1, 2, 9, 257, 300'007};
#else
constexpr int64_t kCounts[] = {0, 1, 2, 9, 257, 1'000'003};
#endif

template <class T>
T reduced(int size, int64_t index, ReduceOp op) {
  T result = element<T>(0, index);
  for (int rank = 1; rank < size; ++rank) {
    const T next = element<T>(rank, index);
    result = op == ReduceOp::sum   ? result + next
             : op == ReduceOp::max ? std::max(result, next)
                                   : std::min(result, next);
  }
  return result;
}

template <class T>
void check_all_reduce(Communicator& world, DType dtype, ReduceOp op) {
  HostStream stream;
  for (const int64_t count : kCounts) {
    auto values = elements<T>(world.rank(), count);
    world.all_reduce(values.data(), count, dtype, op, stream);
    world.synchronize(stream, patience());
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; ++i)
      wrong += values[static_cast<size_t>(i)] != reduced<T>(world.size(), i, op);
    EXPECT_EQ(wrong, 0) << name_of(dtype) << " count " << count;
  }
}

void all_reduce_sums_one_number(Communicator& world) {
  HostStream stream;
  const float expected[] = {1, 3, 6, 10, 15};  // 1 + 2 + ... + size
  ASSERT_LE(world.size(), 5);
  float value = static_cast<float>(world.rank() + 1);
  world.all_reduce(&value, 1, DType::float32, ReduceOp::sum, stream);
  world.synchronize(stream, patience());
  EXPECT_EQ(value, expected[world.size() - 1]);
}

void all_reduce_takes_every_dtype_and_op(Communicator& world) {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max, ReduceOp::min}) {
    check_all_reduce<float>(world, DType::float32, op);
    check_all_reduce<double>(world, DType::float64, op);
    check_all_reduce<int32_t>(world, DType::int32, op);
  }
}

void all_gather_fills_the_blocks_of_others(Communicator& world) {
  HostStream stream;
  for (const int64_t count : kCounts) {
    std::vector<float> values(static_cast<size_t>(count * world.size()), -1.0f);
    const auto own = elements<float>(world.rank(), count);
    std::copy(own.begin(), own.end(), values.begin() + count * world.rank());
    world.all_gather(values.data(), count * 4, stream);
    world.synchronize(stream, patience());
    for (int rank = 0; rank < world.size(); ++rank) {
      const auto expected = elements<float>(rank, count);
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), values.begin() + count * rank))
          << "count " << count << " block " << rank;
    }
  }
}

void broadcast_reaches_all_from_every_root(Communicator& world) {
  HostStream stream;
  for (int root = 0; root < world.size(); ++root)
    for (const int64_t count : kCounts) {
      auto values = elements<int32_t>(world.rank(), count);
      world.broadcast(values.data(), count * 4, root, stream);
      world.synchronize(stream, patience());
      EXPECT_EQ(values, elements<int32_t>(root, count)) << "root " << root;
    }
}

void broadcast_takes_any_number_of_bytes(Communicator& world) {
  HostStream stream;
  for (const int64_t size : {1, 3, 1021}) {
    auto bytes = elements<uint8_t>(world.rank(), size);
    world.broadcast(bytes.data(), size, world.size() - 1, stream);
    world.synchronize(stream, patience());
    EXPECT_EQ(bytes, elements<uint8_t>(world.size() - 1, size));
  }
}

/// Rank 0 enters first and can tell that nobody is through: the others wait for its word on another
/// communicator.
void collectives_wait_for_every_rank(Communicator& world) {
  if (world.size() == 1) return;
  HostStream stream;
  const auto control = world.split(0, world.rank());
  const auto gate = [&](const std::function<void()>& start) {
    char word = 0;
    if (world.rank() == 0) {
      start();
      for (int poll = 0; poll < 100; ++poll) EXPECT_FALSE(world.test());
      control->broadcast(&word, 1, 0, stream);
      control->synchronize(stream, patience());
    } else {
      control->broadcast(&word, 1, 0, stream);
      control->synchronize(stream, patience());
      start();
    }
    world.synchronize(stream, patience());
    EXPECT_TRUE(world.test());
  };
  gate([&] { world.barrier(stream); });
  std::vector<float> values(5, 1.0f);
  gate([&] { world.all_reduce(values.data(), 5, DType::float32, ReduceOp::sum, stream); });
  EXPECT_EQ(values, std::vector<float>(5, static_cast<float>(world.size())));
}

void outstanding_operations_complete_together(Communicator& world) {
  HostStream stream;
  const int size = world.size(), rank = world.rank();
  const int64_t count = 4099;
  auto sums = elements<float>(rank, count);
  auto least = elements<double>(rank, count);
  auto sent = elements<int32_t>(rank, count);
  std::vector<int32_t> gathered(static_cast<size_t>(count * size)), received(static_cast<size_t>(count));
  std::copy(sent.begin(), sent.end(), gathered.begin() + count * rank);
  auto maxima = elements<int32_t>(rank, 1);
  std::vector<Transfer> ring;
  if (size > 1)
    ring = {receive_from((rank + size - 1) % size, received.data(), count * 4),
            send_to((rank + 1) % size, sent.data(), count * 4)};
  world.all_reduce(sums.data(), count, DType::float32, ReduceOp::sum, stream);
  world.exchange(ring, stream);
  world.all_gather(gathered.data(), count * 4, stream);
  world.barrier(stream);
  world.all_reduce(least.data(), count, DType::float64, ReduceOp::min, stream);
  world.all_reduce(maxima.data(), 1, DType::int32, ReduceOp::max, stream);
  world.synchronize(stream, patience());
  EXPECT_EQ(sums[17], reduced<float>(size, 17, ReduceOp::sum));
  EXPECT_EQ(least[5], reduced<double>(size, 5, ReduceOp::min));
  EXPECT_EQ(maxima[0], element<int32_t>(size - 1, 0));
  EXPECT_EQ(gathered[static_cast<size_t>(count * size - 1)], element<int32_t>(size - 1, count - 1));
  if (size > 1) {
    EXPECT_EQ(received, elements<int32_t>((rank + size - 1) % size, count));
  }
}

void chained_operations_on_one_buffer_see_each_others_results(Communicator& world) {
  // The second reads what the first wrote, so the first must be complete: only after a synchronize may it
  // start.
  HostStream stream;
  int32_t value = 1;
  for (int i = 0; i < 5; ++i) {
    world.all_reduce(&value, 1, DType::int32, ReduceOp::sum, stream);
    world.synchronize(stream, patience());
  }
  const int32_t fifth_powers[] = {1, 32, 243, 1024, 3125};
  EXPECT_EQ(value, fifth_powers[world.size() - 1]);
}

void polling_alone_completes_operations(Communicator& world) {
  HostStream stream;
  auto values = elements<float>(world.rank(), 100'003);
  world.all_reduce(values.data(), 100'003, DType::float32, ReduceOp::sum, stream);
  const Deadline deadline = patience();
  while (!world.test()) ASSERT_LT(Clock::now(), deadline);
  EXPECT_EQ(values[100'002], reduced<float>(world.size(), 100'002, ReduceOp::sum));
}

/// The first of two sums is complete while the others have not come to the second.
void operations_are_polled_one_by_one(Communicator& world) {
  HostStream stream;
  const auto control = world.split(0, world.rank());
  int32_t sums[] = {1, 10};
  const auto add = [&](int which) {
    return world.all_reduce(&sums[which], 1, DType::int32, ReduceOp::sum, stream);
  };
  const Ticket first = add(0);
  EXPECT_TRUE(world.poll({}));
  Ticket second;
  if (world.rank() == 0) {
    second = add(1);
    for (const Deadline deadline = patience(); !world.poll(first);) ASSERT_LT(Clock::now(), deadline);
    EXPECT_EQ(sums[0], world.size());
    for (int poll = 0; poll < 100 && world.size() > 1; ++poll)
      EXPECT_FALSE(world.poll(second) || world.test());
    EXPECT_TRUE(world.poll(first));
  } else {
    world.synchronize(stream, patience());
  }
  control->barrier(stream);
  control->synchronize(stream, patience());
  if (world.rank() != 0) second = add(1);
  EXPECT_LT(first.number, second.number);
  for (const Deadline deadline = patience(); !world.poll(second);) ASSERT_LT(Clock::now(), deadline);
  EXPECT_TRUE(world.poll(first));
  EXPECT_TRUE(world.test());
  EXPECT_EQ(sums[1], 10 * world.size());
}

constexpr ConformanceCheck kCollectives[] = {
    {"OperationsArePolledOneByOne", operations_are_polled_one_by_one},
    {"AllReduceSumsOneNumber", all_reduce_sums_one_number},
    {"AllReduceTakesEveryDTypeAndOp", all_reduce_takes_every_dtype_and_op},
    {"AllGatherFillsTheBlocksOfOthers", all_gather_fills_the_blocks_of_others},
    {"BroadcastReachesAllFromEveryRoot", broadcast_reaches_all_from_every_root},
    {"BroadcastTakesAnyNumberOfBytes", broadcast_takes_any_number_of_bytes},
    {"CollectivesWaitForEveryRank", collectives_wait_for_every_rank},
    {"OutstandingOperationsCompleteTogether", outstanding_operations_complete_together},
    {"ChainedOperationsSeeEachOthersResults", chained_operations_on_one_buffer_see_each_others_results},
    {"PollingAloneCompletesOperations", polling_alone_completes_operations},
};

}  // namespace

std::span<const ConformanceCheck> collective_checks() { return kCollectives; }

}  // namespace lockstep::comm
