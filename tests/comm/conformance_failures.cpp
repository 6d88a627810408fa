#include <gmock/gmock.h>

#include <array>

#include "comm/conformance.h"
#include "comm/conformance_support.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void barrier(Communicator& comm) {
  HostStream stream;
  comm.barrier(stream);
  comm.synchronize(stream, patience());
}

/// Calls every operation: each must throw CommError with `reason`.
void expect_dead(Communicator& comm, const std::string& reason) {
  HostStream stream;
  float value = 0;
  const auto expect = [&](const std::function<void()>& call) {
    EXPECT_THAT(comm_error_of(call), HasSubstr(reason));
  };
  expect([&] { comm.all_reduce(&value, 1, DType::float32, ReduceOp::sum, stream); });
  expect([&] { comm.all_gather(&value, 0, stream); });
  expect([&] { comm.broadcast(&value, 4, 0, stream); });
  expect([&] { comm.exchange({}, stream); });
  expect([&] { comm.barrier(stream); });
  expect([&] { comm.split(0, 0); });
  expect([&] { comm.test(); });
  expect([&] { comm.poll({}); });
  expect([&] { comm.synchronize(stream, patience()); });
}

void a_receive_that_nobody_answers_expires(Communicator& world) {
  const auto control = world.split(0, world.rank());
  if (world.size() > 1 && world.rank() == 0) {
    HostStream stream;
    auto* value = immortal<int32_t>(1);
    const auto started = Clock::now();
    world.exchange(std::array{receive_from(1, value, 4)}, stream);
    try {
      world.synchronize(stream, soon());
      ADD_FAILURE() << "the receive completed, though nobody sent";
    } catch (const CommError& error) {
      EXPECT_EQ(error.code(), ExitCode::hang);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("exchange"), HasSubstr("rank 0 of"), HasSubstr("from rank 1"),
                                      HasSubstr("'world"), HasSubstr(std::string(world.backend()))));
    }
    EXPECT_GE(Clock::now() - started, std::chrono::milliseconds(300));
    expect_dead(world, "from rank 1");
  }
  barrier(*control);
}

void a_collective_that_a_rank_never_enters_expires(Communicator& world) {
  const auto control = world.split(0, world.rank());
  if (world.size() > 1 && world.rank() != world.size() - 1) {
    HostStream stream;
    auto* values = immortal<float>(1000);
    // In the local backend a late rank may find that the others have given up already.
    const std::string message = comm_error_of([&] {
      world.all_reduce(values, 1000, DType::float32, ReduceOp::sum, stream);
      world.synchronize(stream, soon());
    });
    EXPECT_THAT(message, HasSubstr("all_reduce of 1000 float32 (sum)"));
    EXPECT_FALSE(message.empty());
  }
  barrier(*control);
}

/// Either size may be the larger one. The receiver always learns of it; the sender where the backend can
/// tell.
void sizes_that_differ_are_an_error(Communicator& world) {
  const auto control = world.split(0, world.rank());
  for (const int64_t expected : {12, 20}) {
    const auto pair = world.split(world.rank() < 2 ? 0 : -1, world.rank());
    if (pair != nullptr && pair->size() == 2) {
      HostStream stream;
      auto* data = immortal<std::byte>(64);
      if (pair->rank() == 0) {
        pair->exchange(std::array{send_to(1, data, 16)}, stream);
        try {
          pair->synchronize(stream, patience());
        } catch (const CommError& error) {
          EXPECT_THAT(error.what(), HasSubstr("16 bytes"));
        }
      } else {
        const std::string message = comm_error_of([&] {
          pair->exchange(std::array{receive_from(0, data, expected)}, stream);
          pair->synchronize(stream, patience());
        });
        EXPECT_THAT(message, HasSubstr("rank 0 sends"));
        EXPECT_THAT(message, HasSubstr("to rank 1, which expects " + std::to_string(expected) + " bytes"));
        expect_dead(*pair, "rank 0 sends");
      }
    }
    barrier(*control);
  }
}

void abort_ends_pending_and_later_operations(Communicator& world) {
  const auto control = world.split(0, world.rank());
  HostStream stream;
  auto* value = immortal<float>(1);
  if (world.size() > 1 && world.rank() == world.size() - 1) {
    world.abort("the operator said so");
    expect_dead(world, "the operator said so");
  } else if (world.size() > 1) {
    // By the reason where the backend tells the others, else by the deadline; never by waiting for ever.
    EXPECT_FALSE(comm_error_of([&] {
                   world.all_reduce(value, 1, DType::float32, ReduceOp::sum, stream);
                   world.synchronize(stream, soon());
                 }).empty());
  } else {
    world.abort("the operator said so");
    expect_dead(world, "the operator said so");
  }
  barrier(*control);
}

void the_first_reason_stays(Communicator& world) {
  world.abort("first");
  if (world.size() == 1) {
    world.abort("second");
    expect_dead(world, "first");
  }
}

/// What cannot be meant is refused before anything moves, and kills the communicator as every error does.
void wrong_arguments_are_refused(Communicator& world) {
  const int rank = world.rank(), size = world.size();
  const auto control = world.split(0, rank);
  HostStream stream;
  std::array<int32_t, 16> data{};
  const auto refuse = [&](const char* part, const std::function<void(Communicator&)>& call) {
    const auto victim = control->split(0, rank);
    EXPECT_THAT(comm_error_of([&] { call(*victim); }), HasSubstr(part));
    EXPECT_THAT(comm_error_of([&] { victim->test(); }), HasSubstr(part));
    barrier(*control);
  };
  std::vector<DType> unsupported{DType::uint8};
  if (!world.follows_stream() && !world.sums_along_tree())
    unsupported.insert(unsupported.end(), {DType::float16, DType::bfloat16});
  for (const DType dtype : unsupported)
    refuse("dtype not supported",
           [&](auto& c) { c.all_reduce(data.data(), 1, dtype, ReduceOp::sum, stream); });
  refuse("negative", [&](auto& c) { c.all_reduce(data.data(), -1, DType::int32, ReduceOp::sum, stream); });
  refuse("null", [&](auto& c) { c.all_gather(nullptr, 1, stream); });
  refuse("root", [&](auto& c) { c.broadcast(data.data(), 4, size, stream); });
  refuse("root", [&](auto& c) { c.broadcast(data.data(), 4, -1, stream); });
  refuse("itself", [&](auto& c) { c.exchange(std::array{send_to(rank, data.data(), 4)}, stream); });
  refuse("not in the communicator",
         [&](auto& c) { c.exchange(std::array{send_to(size, data.data(), 4)}, stream); });
  if (size > 1)
    refuse("negative",
           [&](auto& c) { c.exchange(std::array{send_to((rank + 1) % size, data.data(), -4)}, stream); });
}

void empty_operations_need_no_memory(Communicator& world) {
  HostStream stream;
  world.all_reduce(nullptr, 0, DType::float32, ReduceOp::sum, stream);
  world.all_gather(nullptr, 0, stream);
  world.broadcast(nullptr, 0, 0, stream);
  world.synchronize(stream, patience());
  EXPECT_TRUE(world.test());
}

constexpr ConformanceCheck kFailures[] = {
    {"AReceiveThatNobodyAnswersExpires", a_receive_that_nobody_answers_expires},
    {"ACollectiveThatARankNeverEntersExpires", a_collective_that_a_rank_never_enters_expires},
    {"SizesThatDifferAreAnError", sizes_that_differ_are_an_error},
    {"AbortEndsPendingAndLaterOperations", abort_ends_pending_and_later_operations},
    {"TheFirstReasonStays", the_first_reason_stays},
    {"WrongArgumentsAreRefused", wrong_arguments_are_refused},
    {"EmptyOperationsNeedNoMemory", empty_operations_need_no_memory},
};

}  // namespace

std::span<const ConformanceCheck> failure_checks() { return kFailures; }

}  // namespace lockstep::comm
