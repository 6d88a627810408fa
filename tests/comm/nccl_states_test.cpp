// What the NCCL communicator makes of NCCL's answers. NCCL is a fake: nothing of it, and no GPU, is needed.

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <cstdlib>

#include "base/host_name.h"
#include "comm/fake_nccl.h"
#include "comm/nccl/environment.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/shared_support.h"
#include "mentions.h"

namespace lockstep::comm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Takes everything, and says of it what its device says.
class StubStream : public device::Stream {
 public:
  const std::string& name() const override { return name_; }
  void launch(std::function<void()>) override {}
  void record(device::Event&) override {}
  void wait(const device::Event&) override {}
  void synchronize() override {}

 private:
  std::string name_ = "no GPU";
};

/// Host memory that counts as a GPU's; what its streams were given is complete when `complete` says so.
class StubDevice : public device::Device {
 public:
  std::atomic<bool> complete = true;

  device::DeviceKind kind() const override { return device::DeviceKind::cuda; }
  std::string description() const override { return "no GPU"; }
  std::unique_ptr<device::Stream> create_stream(const std::string&) override {
    return std::make_unique<StubStream>();
  }
  std::unique_ptr<device::Event> create_event(bool) override { return std::make_unique<Behind>(complete); }

 protected:
  void* allocate_bytes(int64_t size_bytes) override {
    return std::calloc(1, static_cast<size_t>(size_bytes));
  }
  void free_bytes(void* data, int64_t) noexcept override { std::free(data); }

 private:
  class Behind : public device::Event {
   public:
    explicit Behind(const std::atomic<bool>& complete) : complete_(complete) {}
    bool ready() const override { return complete_; }
    void synchronize() override {}
    double milliseconds_since(const device::Event&) const override { return 0; }

   private:
    const std::atomic<bool>& complete_;
  };
};

constexpr std::chrono::milliseconds kLong = std::chrono::seconds(30), kShort = std::chrono::milliseconds(100);

/// Runs `body` on rank 0 of two, each with a communicator of its own on a device of its own.
void on_first_of_two(std::chrono::milliseconds start_timeout,
                     const std::function<void(NcclCommunicator& world, StubDevice& device)>& body) {
  run_group(2, [&](Communicator& group) {
    StubDevice device;
    NcclCommunicator world(group.split(0, group.rank()), device, {.start_timeout = start_timeout}, "world");
    if (group.rank() == 0) body(world, device);
    StubStream stream;
    group.barrier(stream);  // rank 1 keeps its communicator as long
    group.synchronize(stream, patience());
  });
}

/// What both ranks' constructors threw.
std::vector<std::string> errors_of_two(std::chrono::milliseconds start_timeout) {
  std::vector<std::string> errors(2);
  run_group(2, [&](Communicator& group) {
    StubDevice device;
    errors[static_cast<size_t>(group.rank())] = comm_error_of([&] {
      NcclCommunicator(group.split(0, group.rank()), device, {.start_timeout = start_timeout}, "world");
    });
  });
  return errors;
}

TEST(NcclCommunicator, ConnectsWithoutBlockingAndExchangesWithItsNeighbours) {
  FakeNccl nccl;
  nccl.set_polls(5);
  on_first_of_two(kLong, [&](NcclCommunicator&, StubDevice&) {
    const auto calls = nccl.calls();
    // Where the other rank is faster, its groups stand between these, since groups have no rank.
    EXPECT_THAT(calls, ::testing::IsSupersetOf(
                           {"ncclGetUniqueId", "ncclCommInitRankConfig 0 of 2, id i, blocking 0"}));
    EXPECT_EQ(nccl.count("ncclGetUniqueId"), 1);
    EXPECT_EQ(nccl.count("ncclCommInitRankConfig"), 2);
    // The other rank lies one place on and one place back.
    EXPECT_EQ(nccl.count("ncclSend"), 4);
    EXPECT_EQ(nccl.count("ncclRecv"), 4);
  });
}

TEST(NcclCommunicator, ConnectsPartnersAlone) {
  FakeNccl nccl;
  run_group(2, [&](Communicator& group) {
    StubDevice device;
    // The first sends to the second, and nobody answers.
    const ExchangePartners partners =
        group.rank() == 0 ? ExchangePartners{.send = {1}} : ExchangePartners{.receive = {0}};
    NcclCommunicator world(group.split(0, group.rank()), device,
                           {.start_timeout = kLong, .partners = partners, .only_exchanges = true}, "channel");
    StubStream stream;
    group.barrier(stream);
    group.synchronize(stream, patience());
  });
  EXPECT_EQ(nccl.count("ncclSend"), 1);
  EXPECT_EQ(nccl.count("ncclRecv"), 1);
  EXPECT_EQ(nccl.last_of(1, "ncclCommInitRankConfig"), "1 of 2, id i, blocking 0, at most 8 CTAs");
}

TEST(NcclCommunicator, OperationsBecomeNcclsCallsInPlace) {
  FakeNccl nccl;
  on_first_of_two(kLong, [&](NcclCommunicator& world, StubDevice&) {
    StubStream stream;
    const size_t before = nccl.calls().size();
    auto* const data = reinterpret_cast<std::byte*>(0x1000);
    world.all_reduce(data, 16, DType::bfloat16, ReduceOp::max, stream);
    world.all_gather(data, 24, stream);
    world.broadcast(data, 7, 1, stream);
    world.exchange(std::array{send_to(1, nullptr, 0), receive_from(1, data, 5)}, stream);
    auto calls = nccl.calls();
    calls.erase(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(before));
    EXPECT_THAT(calls, ElementsAre("ncclAllReduce 0x1000 0x1000 16 bfloat16 max",
                                   "ncclAllGather 0x1000 0x1000 24 uint8",
                                   "ncclBroadcast 0x1000 0x1000 7 uint8 1", "ncclGroupStart",
                                   "ncclSend 0x0 0 uint8 1", "ncclRecv 0x1000 5 uint8 1", "ncclGroupEnd"));
  });
}

TEST(NcclCommunicator, TheBlockOfARankLiesWhereAllBlocksDo) {
  FakeNccl nccl;
  run_group(2, [&](Communicator& group) {
    StubDevice device;
    // Ranks the other way round, so that the calls are those of the thread that is rank 1.
    NcclCommunicator world(group.split(0, -group.rank()), device, {.start_timeout = kLong}, "world");
    StubStream stream;
    auto* const data = reinterpret_cast<std::byte*>(0x1000);
    if (world.rank() == 1) {
      world.all_gather(data, 16, stream);
      EXPECT_EQ(nccl.last_of(1, "ncclAllGather"), "0x1010 0x1000 16 uint8");
    }
  });
}

TEST(NcclCommunicator, OperationsOnNothingAreNotCalls) {
  FakeNccl nccl;
  on_first_of_two(kLong, [&](NcclCommunicator& world, StubDevice&) {
    StubStream stream;
    const size_t before = nccl.calls().size();
    world.all_reduce(nullptr, 0, DType::float32, ReduceOp::sum, stream);
    world.all_gather(nullptr, 0, stream);
    world.exchange({}, stream);
    EXPECT_TRUE(world.test());
    EXPECT_EQ(nccl.calls().size(), before);
    world.barrier(stream);
    EXPECT_THAT(nccl.calls().back(), AllOf(HasSubstr("ncclAllReduce"), HasSubstr(" 1 int32 max")));
  });
}

TEST(NcclCommunicator, OneRankAloneNeedsNoNccl) {
  FakeNccl nccl;
  StubDevice device;
  StubStream stream;
  NcclCommunicator world(make_solo_communicator(), device, {}, "world");
  world.barrier(stream);
  world.synchronize(stream, patience());
  world.check_health();
  EXPECT_THAT(nccl.calls(), IsEmpty());
}

TEST(NcclCommunicator, AllRanksLearnThatOneCannotConnect) {
  FakeNccl nccl;
  nccl.answer("ncclCommInitRankConfig 1", ncclSystemError);
  for (const auto& error : errors_of_two(kLong))
    EXPECT_THAT(
        error,
        AllOf(Mentions("'world' of 2 GPUs ... rank 1: ... system error: the fake's own words ... host"),
              HasSubstr("src/comm/nccl/nccl_handle.cpp:"), Not(HasSubstr("rank 0:"))));
  EXPECT_EQ(nccl.count("ncclCommAbort"), 2);
  EXPECT_EQ(nccl.count("ncclCommFinalize"), 0);
}

TEST(NcclCommunicator, AllRanksLearnThatThereIsNoId) {
  FakeNccl nccl;
  nccl.answer("ncclGetUniqueId", ncclSystemError);
  for (const auto& error : errors_of_two(kLong)) EXPECT_THAT(error, Mentions("rank 0: ... system error"));
  EXPECT_EQ(nccl.count("ncclCommInitRankConfig"), 0);
}

TEST(NcclCommunicator, ConnectingHasADeadline) {
  FakeNccl nccl;
  nccl.set_polls(-1);
  for (const auto& error : errors_of_two(kShort))
    EXPECT_THAT(error, AllOf(Mentions("rank 0: ... NCCL ... 0.1 s"), Mentions("rank 1: ... NCCL")));
  EXPECT_EQ(nccl.count("ncclCommAbort"), 2) << "each rank ends its own, once";
}

TEST(NcclCommunicator, AnErrorThatNcclMetInTheBackgroundIsFoundAndStays) {
  FakeNccl nccl;
  on_first_of_two(kLong, [&](NcclCommunicator& world, StubDevice&) {
    StubStream stream;
    world.barrier(stream);
    nccl.set_async_error(ncclRemoteError);
    EXPECT_THAT(comm_error_of([&] { world.check_health(); }),
                AllOf(HasSubstr("rank 0 of 2 on communicator 'world' (nccl)"),
                      HasSubstr("remote process exited"), HasSubstr("another rank")));
    nccl.set_async_error(ncclSuccess);
    EXPECT_THAT(comm_error_of([&] { world.barrier(stream); }), HasSubstr("remote process exited"));
    EXPECT_THAT(comm_error_of([&] { world.test(); }), HasSubstr("remote process exited"));
    world.abort("later");
    EXPECT_THAT(comm_error_of([&] { world.check_health(); }), HasSubstr("remote process exited"));
    EXPECT_EQ(nccl.count("ncclCommAbort"), 1);
  });
}

TEST(NcclCommunicator, AGroupThatWasBegunIsEnded) {
  FakeNccl nccl;
  on_first_of_two(kLong, [&](NcclCommunicator& world, StubDevice&) {
    StubStream stream;
    int32_t value = 0;
    nccl.answer("ncclSend", ncclSystemError);
    const int before = nccl.count("ncclGroupEnd");
    EXPECT_THAT(comm_error_of([&] { world.exchange(std::array{send_to(1, &value, 4)}, stream); }),
                Mentions("exchange (send of 4 bytes to rank 1): ... system error ... on host "));
    EXPECT_EQ(nccl.count("ncclGroupEnd"), before + 1);
  });
}

TEST(NcclCommunicator, AnOperationThatStaysIncompleteExpires) {
  FakeNccl nccl;
  on_first_of_two(kLong, [&](NcclCommunicator& world, StubDevice& device) {
    StubStream stream;
    float value = 0;
    device.complete = false;
    world.all_reduce(&value, 1, DType::float32, ReduceOp::sum, stream);
    EXPECT_FALSE(world.test());
    try {
      world.synchronize(stream, deadline_in(kShort));
      ADD_FAILURE() << "nothing completed";
    } catch (const CommError& error) {
      EXPECT_EQ(error.code(), ExitCode::hang);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("rank 0 of 2"), Mentions("all_reduce ... 1 float32 ... 0.1")));
    }
    world.abort("waits for the abort that has begun");
    EXPECT_EQ(nccl.count("ncclCommAbort"), 1) << "the kernel would wait for ever";
  });
}

/// The first exchange of a pair waits for both, in the call that starts it: a watchdog must be able to end
/// that.
TEST(NcclCommunicator, AnAbortFromAnotherThreadEndsACallThatWaits) {
  FakeNccl nccl;
  on_first_of_two(kLong, [&](NcclCommunicator& world, StubDevice&) {
    StubStream stream;
    nccl.set_polls(-1);
    std::thread watchdog([&] {
      while (nccl.count("ncclAllReduce") == 0) std::this_thread::yield();
      world.abort("rank 1 is lost");
    });
    EXPECT_THAT(comm_error_of([&] { world.barrier(stream); }), HasSubstr("rank 1 is lost"));
    watchdog.join();
    nccl.set_polls(0);
    EXPECT_EQ(nccl.count("ncclCommAbort"), 1);
  });
  EXPECT_EQ(nccl.count("ncclCommFinalize"), 1) << "rank 1's, which nobody aborted";
}

TEST(NcclCommunicator, LeavesInOrderWhenNothingIsOutstanding) {
  FakeNccl nccl;
  on_first_of_two(kLong, [](NcclCommunicator& world, StubDevice&) {
    StubStream stream;
    world.barrier(stream);
    world.synchronize(stream, patience());
  });
  EXPECT_EQ(nccl.count("ncclCommFinalize"), 2);
  EXPECT_EQ(nccl.count("ncclCommDestroy"), 2);
  EXPECT_EQ(nccl.count("ncclCommAbort"), 0);
}

TEST(NcclCommunicator, AbortsWhatIsOutstandingWhenItGoes) {
  FakeNccl nccl;
  on_first_of_two(kLong, [](NcclCommunicator& world, StubDevice& device) {
    StubStream stream;
    device.complete = false;
    world.barrier(stream);
  });
  EXPECT_EQ(nccl.count("ncclCommAbort"), 1);
  EXPECT_EQ(nccl.count("ncclCommFinalize"), 1);
}

TEST(NcclHandle, AbortsWhereLeavingTakesTooLong) {
  FakeNccl nccl;
  NcclHandle handle(ncclUniqueId{}, 2, 0, deadline_in(kLong));
  nccl.set_polls(-1);
  handle.finish(deadline_in(kShort));
  EXPECT_THAT(nccl.calls(),
              ElementsAre(HasSubstr("ncclCommInitRankConfig"), "ncclCommFinalize", "ncclCommAbort"));
}

constexpr NcclHandle::Options kPatient{.end_timeout = kLong}, kImpatient{.end_timeout = kShort};

TEST(NcclHandle, AnAbortIsOverWhenNcclIs) {
  FakeNccl nccl;
  NcclHandle handle(ncclUniqueId{}, 2, 0, deadline_in(kLong), kPatient);
  nccl.hold("ncclCommAbort");
  std::atomic<bool> over = false;
  std::thread aborting([&] {
    handle.abort();
    over = true;
  });
  while (nccl.count("ncclCommAbort") == 0) std::this_thread::yield();
  // Others are told at once meanwhile.
  EXPECT_THAT(comm_error_of([&] { handle.check(); }), HasSubstr("aborted"));
  EXPECT_THAT(comm_error_of([&] { handle.call(ncclCommFinalize, deadline_in(kLong)); }),
              HasSubstr("aborted"));
  handle.begin_abort();
  EXPECT_FALSE(over) << "nobody let it";
  nccl.release();
  aborting.join();
  EXPECT_EQ(nccl.count("ncclCommAbort"), 1);
}

TEST(NcclHandle, AnAbortThatNeverEndsIsLeftBehindWithOneWarning) {
  FakeNccl nccl;
  ::testing::internal::CaptureStderr();
  {
    NcclHandle handle(ncclUniqueId{}, 2, 1, deadline_in(kLong), kImpatient);
    nccl.hold("ncclCommAbort");
    const auto begin = Clock::now();
    handle.abort();
    EXPECT_GE(milliseconds_between(begin, Clock::now()), 100);
    handle.abort();
  }
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(told, Mentions("NCCL ... abort ... rank 1 of 2 ... 0.1 s"));
  EXPECT_EQ(std::count(told.begin(), told.end(), '\n'), 1) << told;
  EXPECT_EQ(nccl.count("ncclCommAbort"), 1);
}

TEST(NcclHandle, ItsDestructorAbortsAndWaits) {
  FakeNccl nccl;
  nccl.hold("ncclCommAbort");
  std::atomic<bool> gone = false;
  std::thread owner([&] {
    { NcclHandle handle(ncclUniqueId{}, 2, 0, deadline_in(kLong), kPatient); }
    gone = true;
  });
  while (nccl.count("ncclCommAbort") == 0) std::this_thread::yield();
  EXPECT_FALSE(gone) << "it may be using what its owner frees next";
  nccl.release();
  owner.join();
}

TEST(NcclHandle, ADestructionThatNeverEndsIsLeftBehindToo) {
  FakeNccl nccl;
  ::testing::internal::CaptureStderr();
  {
    NcclHandle handle(ncclUniqueId{}, 2, 0, deadline_in(kLong), kImpatient);
    nccl.hold("ncclCommDestroy");
    handle.finish(deadline_in(kLong));
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Mentions("NCCL ... destroy ... rank 0 of 2"));
  EXPECT_EQ(nccl.count("ncclCommAbort"), 0);
}

TEST(NcclHandle, IsFreedOnTheGpuOnWhichItWasMade) {
  FakeNccl nccl;
  cudaSetDevice(3);
  NcclHandle aborted(ncclUniqueId{}, 2, 0, deadline_in(kLong)),
      finished(ncclUniqueId{}, 2, 0, deadline_in(kLong));
  cudaSetDevice(0);
  aborted.abort();
  finished.finish(deadline_in(kLong));
  EXPECT_THAT(nccl.ends(), ElementsAre(3, 3));
}

/// The kernels of one may hold up the abort of the other: both have begun before either is waited for.
TEST(NcclCommunicator, AllOfAProcessAreAbortedAtTheSameTime) {
  FakeNccl nccl;
  ::testing::internal::CaptureStderr();
  run_group(2, [&](Communicator& group) {
    StubDevice device;
    NcclCommunicator one(group.split(0, group.rank()), device, {.start_timeout = kLong}, "one");
    NcclCommunicator two(group.split(0, group.rank()), device, {.start_timeout = kLong}, "two");
    if (group.rank() != 0) return;
    nccl.hold("ncclCommAbort");
    std::thread releasing([&] {
      while (nccl.count("ncclCommAbort") < 2) std::this_thread::yield();
      nccl.release();
    });
    Communicator* const all[] = {&one, nullptr, &two};
    abort_all(all, "the step has failed");
    releasing.join();
    for (Communicator* each : {&one, &two})
      EXPECT_THAT(comm_error_of([&] { each->check_health(); }), HasSubstr("the step has failed"));
  });
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "the first was given up";
}

TEST(NcclEnvironment, SaysWhatTheUserHasNotSaid) {
  const auto set = [](int version, GpuAlgorithm algorithm, const char* users = nullptr) {
    FakeNccl nccl;
    nccl.set_version(version);
    ::unsetenv("NCCL_ALGO");
    ::unsetenv("NCCL_RUNTIME_CONNECT");
    if (users != nullptr) ::setenv("NCCL_ALGO", users, 1);
    set_nccl_environment(algorithm);
    EXPECT_STREQ(std::getenv("NCCL_RUNTIME_CONNECT"), "0");
    const char* chosen = std::getenv("NCCL_ALGO");
    return std::string(chosen == nullptr ? "" : chosen);
  };
  EXPECT_EQ(set(22809, GpuAlgorithm::automatic), "");
  EXPECT_EQ(set(22809, GpuAlgorithm::ring), "allreduce:ring");
  EXPECT_EQ(set(22809, GpuAlgorithm::tree), "allreduce:tree");
  EXPECT_EQ(set(22304, GpuAlgorithm::tree), "Tree");
  EXPECT_EQ(set(22809, GpuAlgorithm::tree, "NVLS"), "NVLS");
}

TEST(NcclEnvironment, GivesRanksThatShareAGpuHostsOfTheirOwn) {
  ::unsetenv("NCCL_HOSTID");
  allow_shared_gpu(3);
  EXPECT_EQ(std::string(std::getenv("NCCL_HOSTID")), host_name() + "-rank3");
  allow_shared_gpu(4);
  EXPECT_EQ(std::string(std::getenv("NCCL_HOSTID")), host_name() + "-rank3") << "what is set stays";
}

}  // namespace
}  // namespace lockstep::comm
