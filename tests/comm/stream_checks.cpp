#include "comm/stream_checks.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <thread>

#include "base/half.h"
#include "base/index.h"
#include "comm/conformance_support.h"

namespace lockstep::comm {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

/// Waits for the stream as executors do: the host looks after the communicator meanwhile.
void wait_for(device::Stream& stream, Communicator& world, device::Device& device) {
  const auto behind = device.create_event();
  stream.record(*behind);
  for (; !behind->ready(); std::this_thread::yield()) {
    world.check_health();
    stream.idle();  // some devices work only while they are asked
  }
}

/// Elements in memory of the device, put there and looked at in a stream's order.
template <class T>
class Values {
 public:
  Values(device::Device& device, int64_t count)
      : device_(device.allocate(count * static_cast<int64_t>(sizeof(T)))),
        host_(device.allocate_host(count * static_cast<int64_t>(sizeof(T)))) {}
  T* data() { return reinterpret_cast<T*>(device_.data()); }
  std::span<T> host() {
    return {reinterpret_cast<T*>(host_.data()), static_cast<size_t>(host_.size_bytes()) / sizeof(T)};
  }
  void put(device::Stream& stream) { stream.copy(device_.data(), host_.data(), device_.size_bytes()); }
  void take(device::Stream& stream) { stream.copy(host_.data(), device_.data(), device_.size_bytes()); }

 private:
  device::Buffer device_, host_;
};

void follows_its_stream(Communicator& world, device::Device& device) {
  EXPECT_TRUE(world.follows_stream());
  const auto stream = device.create_stream("lane");
  Values<int32_t> values(device, 1000);
  std::fill(values.host().begin(), values.host().end(), world.rank() + 1);
  values.put(*stream);
  // Nobody waits in between: each sees what the one before has left.
  world.all_reduce(values.data(), 1000, DType::int32, ReduceOp::sum, *stream);
  world.all_reduce(values.data(), 1000, DType::int32, ReduceOp::sum, *stream);
  values.take(*stream);
  wait_for(*stream, world, device);
  const int32_t expected[] = {1, 3 * 2, 6 * 3, 10 * 4};  // the sum of 1 ... size, times size
  EXPECT_THAT(values.host(), Each(expected[world.size() - 1]));
  EXPECT_TRUE(world.test());
}

void events_order_it_with_other_streams(Communicator& world, device::Device& device) {
  const auto compute = device.create_stream("compute"), lane = device.create_stream("lane");
  const auto made = device.create_event(), reduced = device.create_event();
  Values<float> values(device, 10'007);
  for (int round = 0; round < 20; ++round) {
    std::fill(values.host().begin(), values.host().end(), static_cast<float>(world.rank() + round));
    values.put(*compute);
    compute->record(*made);
    lane->wait(*made);
    world.all_reduce(values.data(), 10'007, DType::float32, ReduceOp::max, *lane);
    lane->record(*reduced);
    compute->wait(*reduced);
    values.take(*compute);
    wait_for(*compute, world, device);
    const auto expected = static_cast<float>(world.size() - 1 + round);
    ASSERT_EQ(std::count(values.host().begin(), values.host().end(), expected), 10'007);
  }
}

void keeps_its_order_on_several_streams(Communicator& world, device::Device& device) {
  const auto a = device.create_stream("a"), b = device.create_stream("b");
  Values<int32_t> values(device, 1);
  values.host()[0] = 1;
  values.put(*a);
  for (int i = 0; i < 4; ++i)
    world.all_reduce(values.data(), 1, DType::int32, ReduceOp::sum, i % 2 == 0 ? *a : *b);
  values.take(*b);
  wait_for(*b, world, device);
  const int32_t fourth_powers[] = {1, 16, 81, 256};
  EXPECT_EQ(values.host()[0], fourth_powers[world.size() - 1]);
}

/// A ring in which everybody sends on what arrived, all of it given to the stream at once.
void passes_on_what_arrives(Communicator& world, device::Device& device) {
  const int rank = world.rank(), size = world.size();
  if (size == 1) return;
  const auto stream = device.create_stream("lane");
  Values<int32_t> values(device, 4);  // by hop, after the own one
  values.host()[0] = 100 + rank;
  values.put(*stream);
  for (int hop = 0; hop + 1 < size; ++hop) {
    const Transfer transfers[] = {send_to((rank + 1) % size, values.data() + hop, 4),
                                  receive_from((rank + size - 1) % size, values.data() + hop + 1, 4)};
    world.exchange(transfers, *stream);
  }
  values.take(*stream);
  wait_for(*stream, world, device);
  for (int hop = 0; hop < size; ++hop)
    EXPECT_EQ(values.host()[static_cast<size_t>(hop)], 100 + (rank + size - hop) % size);
}

/// Messages that go one way: their memory is written again as soon as the stream has passed them, and all of
/// it is given to the stream at once. Sizes go up and down, and some operations go both ways.
void memory_of_messages_is_used_again(Communicator& world, device::Device& device) {
  constexpr int kRounds = 24;
  const int rank = world.rank(), size = world.size();
  if (size == 1) return;
  const auto stream = device.create_stream("lane");
  const auto count_of = [](int round) { return 1 + round * 37 % 401; };
  const auto value_of = [](int round, int i) { return 1000 * round + i; };
  Values<int32_t> message(device, 401);
  std::vector<Values<int32_t>> made, seen;  // in the host's memory, by round
  for (int round = 0; round < kRounds; ++round) {
    const int from = round / 3 % size, count = count_of(round);
    made.emplace_back(device, 401);
    seen.emplace_back(device, 401);
    for (int i = 0; i < 401; ++i) made.back().host()[static_cast<size_t>(i)] = value_of(round, i);
    if (round % 8 == 7) {
      stream->copy(message.data(), made.back().host().data(), 4);
      world.all_reduce(message.data(), 1, DType::int32, ReduceOp::max, *stream);
    } else if (from == rank) {
      stream->copy(message.data(), made.back().host().data(), 4 * count);
      std::vector<Transfer> sends;
      for (int to = 0; to < size; ++to)
        if (to != rank) sends.push_back(send_to(to, message.data(), 4 * count));
      world.exchange(sends, *stream);
    } else {
      const Transfer receives[] = {receive_from(from, message.data(), 4 * count)};
      world.exchange(receives, *stream);
    }
    stream->copy(seen.back().host().data(), message.data(), 4 * 401);
  }
  wait_for(*stream, world, device);
  for (; !world.test(); std::this_thread::yield()) {
  }
  for (int round = 0; round < kRounds; ++round)
    for (int i = 0; i < (round % 8 == 7 ? 1 : count_of(round)); ++i)
      ASSERT_EQ(nth(seen, round).host()[static_cast<size_t>(i)], value_of(round, i)) << "round " << round;
}

template <class Half>
void check_halves(Communicator& world, device::Device& device, DType dtype) {
  const auto stream = device.create_stream("lane");
  const int size = world.size();
  Values<Half> sums(device, 257), maxima(device, 257);
  // Numbers that two bytes hold exactly, whatever the order of summation.
  for (auto& value : sums.host()) value = Half(0.25f * static_cast<float>(world.rank() + 1));
  for (auto& value : maxima.host()) value = Half(-1.5f * static_cast<float>(world.rank() + 1));
  sums.put(*stream);
  maxima.put(*stream);
  world.all_reduce(sums.data(), 257, dtype, ReduceOp::sum, *stream);
  world.all_reduce(maxima.data(), 257, dtype, ReduceOp::max, *stream);
  sums.take(*stream);
  maxima.take(*stream);
  wait_for(*stream, world, device);
  const float expected[] = {0.25f, 0.75f, 1.5f, 2.5f};
  for (const auto value : sums.host())
    ASSERT_EQ(static_cast<float>(value), expected[size - 1]) << name_of(dtype);
  for (const auto value : maxima.host()) ASSERT_EQ(static_cast<float>(value), -1.5f) << name_of(dtype);
}

void reduces_halves(Communicator& world, device::Device& device) {
  check_halves<bfloat16>(world, device, DType::bfloat16);
  check_halves<float16>(world, device, DType::float16);
}

void is_healthy_until_it_is_aborted(Communicator& world, device::Device& device) {
  const auto stream = device.create_stream("lane");
  const auto control = world.split(0, world.rank());
  EXPECT_NO_THROW(world.check_health());
  world.barrier(*stream);
  world.synchronize(*stream, patience());
  EXPECT_NO_THROW(world.check_health());
  control->barrier(*stream);  // an abort may reach all ranks
  control->synchronize(*stream, patience());
  world.abort("the operator said so");
  EXPECT_THAT(comm_error_of([&] { world.check_health(); }), HasSubstr("the operator said so"));
}

/// What no other rank enters would keep the device busy for ever. The abort comes from another thread, as a
/// watchdog's.
void an_abort_ends_what_waits_for_others(Communicator& world, device::Device& device) {
  const auto control = world.split(0, world.rank());
  const auto stream = device.create_stream("lane");
  Values<float> values(device, 1000);
  if (world.rank() == 0 && world.size() > 1) {
    world.all_reduce(values.data(), 1000, DType::float32, ReduceOp::sum, *stream);
    for (int poll = 0; poll < 100; ++poll) EXPECT_FALSE(world.test());
    std::thread([&] { world.abort("a peer was lost"); }).join();
    EXPECT_THAT(comm_error_of([&] { world.test(); }), HasSubstr("a peer was lost"));
    stream->synchronize();
  }
  control->barrier(*stream);
  control->synchronize(*stream, patience());
}

void goes_away_with_operations_outstanding(Communicator& world, device::Device& device) {
  const auto control = world.split(0, world.rank());
  const auto stream = device.create_stream("lane");
  Values<float> values(device, 1000);
  if (world.rank() == 0 && world.size() > 1) {
    auto part = control->split(0, 0);
    part->all_reduce(values.data(), 1000, DType::float32, ReduceOp::sum, *stream);
    part.reset();
    stream->synchronize();
  } else {
    control->split(0, world.rank());
  }
  control->barrier(*stream);
  control->synchronize(*stream, patience());
}

constexpr StreamCheck kChecks[] = {
    {"FollowsItsStream", follows_its_stream},
    {"EventsOrderItWithOtherStreams", events_order_it_with_other_streams},
    {"KeepsItsOrderOnSeveralStreams", keeps_its_order_on_several_streams},
    {"PassesOnWhatArrives", passes_on_what_arrives},
    {"MemoryOfMessagesIsUsedAgain", memory_of_messages_is_used_again},
    {"ReducesHalves", reduces_halves},
    {"IsHealthyUntilItIsAborted", is_healthy_until_it_is_aborted},
    {"AnAbortEndsWhatWaitsForOthers", an_abort_ends_what_waits_for_others},
    {"GoesAwayWithOperationsOutstanding", goes_away_with_operations_outstanding},
};

}  // namespace

std::span<const StreamCheck> stream_checks() { return kChecks; }

}  // namespace lockstep::comm
