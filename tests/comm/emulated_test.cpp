// Communicators of the emulated GPU, with threads as ranks, each with a GPU of its own.

#include <gmock/gmock.h>

#include <atomic>
#include <cstddef>

#include "comm/conformance.h"
#include "comm/device_twin.h"
#include "comm/shared_support.h"
#include "comm/stream_checks.h"
#include "device/emulated/emulated_device.h"

namespace lockstep::comm {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<device::Device> make_device(int rank) {
  return std::make_unique<device::EmulatedDevice>(
      device::EmulatedOptions{.seed = static_cast<uint64_t>(rank) + 1});
}

/// The communicator of the emulated GPU's own, or one whose messages are the host's.
struct Maker {
  const char* name;
  std::unique_ptr<Communicator> (*make)(Communicator& group, device::Device& device);
};
constexpr Maker kOwn{
    "", [](Communicator& group, device::Device& device) { return make_gpu_communicator(group, device); }};
constexpr Maker kStaged{"Staged", [](Communicator& group, device::Device& device) {
                          return make_staged_communicator(group.split(0, group.rank()), device, 100);
                        }};

/// Runs `body` on one thread for each rank, with a communicator for its GPU.
void run_on_devices(int size, const std::function<void(Communicator& world, device::Device& device)>& body,
                    const Maker& maker = kOwn) {
  run_group(size, [&](Communicator& group) {
    const auto device = make_device(group.rank());
    const auto world = maker.make(group, *device);
    try {
      body(*world, *device);
    } catch (const std::exception&) {
      world->abort("another rank's test failed");
      throw;
    }
  });
}

class Emulated : public testing::TestWithParam<std::tuple<int, ConformanceCheck, Maker>> {};

TEST_P(Emulated, Conforms) {
  run_group(std::get<0>(GetParam()), [](Communicator& group) {
    const auto twin = std::make_shared<TwinDevice>(make_device(group.rank()));
    DeviceTwin world(std::get<2>(GetParam()).make(group, *twin->device), twin);
    try {
      std::get<1>(GetParam()).run(world);
    } catch (const std::exception&) {
      world.abort("another rank's test failed");
      throw;
    }
  });
}

class EmulatedStreams : public testing::TestWithParam<std::tuple<int, StreamCheck, Maker>> {};

TEST_P(EmulatedStreams, Conform) {
  run_on_devices(std::get<0>(GetParam()), std::get<1>(GetParam()).run, std::get<2>(GetParam()));
}

constexpr auto name_of_check = [](const auto& info) {
  return std::get<2>(info.param).name + std::string(std::get<1>(info.param).name) +
         std::to_string(std::get<0>(info.param));
};
INSTANTIATE_TEST_SUITE_P(Checks, Emulated,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::ValuesIn(conformance_checks().begin(),
                                                            conformance_checks().end()),
                                          testing::Values(kOwn, kStaged)),
                         name_of_check);
INSTANTIATE_TEST_SUITE_P(Checks, EmulatedStreams,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::ValuesIn(stream_checks().begin(), stream_checks().end()),
                                          testing::Values(kOwn, kStaged)),
                         name_of_check);

/// Rank 0 has a GPU, rank 1 is a server in the host's memory.
void run_with_a_server(
    const std::function<void(Communicator& world, device::Device& device, device::Stream& stream)>& worker,
    const std::function<void(Communicator& host, device::Stream& stream)>& server) {
  run_group(2, [&](Communicator& group) {
    auto host = group.split(0, group.rank());
    if (group.rank() == 1) {
      const auto cpu = device::make_cpu_device();
      const auto stream = cpu->create_stream("server");
      return server(*host, *stream);
    }
    const auto device = make_device(0);
    const auto world = make_staged_communicator(std::move(host), *device, staging_of(64));
    const auto stream = device->create_stream("lane");
    worker(*world, *device, *stream);
  });
}

/// The stream goes on to the next copy while messages are under way; with the third it waits for the first.
TEST(StagedCommunicator, AStreamPassesTwoExchangesThatOnlySend) {
  std::atomic<bool> passed{false};
  run_with_a_server(
      [&](Communicator& world, device::Device& device, device::Stream& stream) {
        const device::Buffer data = device.allocate(64);
        std::vector<std::unique_ptr<device::Event>> behind;
        for (int message = 0; message < 3; ++message) {
          const Transfer sends[] = {send_to(1, data.data(), 64)};
          world.exchange(sends, stream);
          behind.push_back(device.create_event());
          stream.record(*behind.back());
        }
        while (!behind[1]->ready()) stream.idle();
        for (int turn = 0; turn < 20; ++turn) stream.idle();
        EXPECT_FALSE(behind[2]->ready()) << "the memory of the first is still read";
        EXPECT_FALSE(world.test());
        passed = true;
        world.synchronize(stream, patience());
        EXPECT_TRUE(behind[2]->ready());
      },
      [&](Communicator& host, device::Stream& stream) {
        while (!passed) std::this_thread::yield();
        std::vector<std::byte> data(64);
        for (int message = 0; message < 3; ++message) {
          const Transfer receives[] = {receive_from(0, data.data(), 64)};
          host.exchange(receives, stream);
          host.synchronize(stream, patience());
        }
      });
}

/// Two messages arrive while the stream is busy with something else.
TEST(StagedCommunicator, WhatOnlyArrivesDoesNotWaitForTheStream) {
  std::atomic<bool> sent{false};
  run_with_a_server(
      [&](Communicator& world, device::Device& device, device::Stream& stream) {
        device::Buffer data = device.allocate(2 * 64), seen = device.allocate_host(2 * 64);
        dynamic_cast<device::EmulatedStream&>(stream).launch_polled([&] { return sent.load(); });
        for (int message = 0; message < 2; ++message) {
          const Transfer receives[] = {receive_from(1, data.data() + 64 * message, 64)};
          world.exchange(receives, stream);
        }
        stream.copy(seen.data(), data.data(), 2 * 64);
        while (!sent) world.check_health();
        world.synchronize(stream, patience());
        stream.synchronize();
        for (int i = 0; i < 2 * 64; ++i)
          EXPECT_EQ(seen.data()[i], std::byte{static_cast<unsigned char>(i)}) << i;
      },
      [&](Communicator& host, device::Stream& stream) {
        std::vector<std::byte> data(2 * 64);
        for (size_t i = 0; i < data.size(); ++i) data[i] = std::byte{static_cast<unsigned char>(i)};
        for (int message = 0; message < 2; ++message) {
          const Transfer sends[] = {send_to(0, data.data() + 64 * message, 64)};
          host.exchange(sends, stream);
        }
        host.synchronize(stream, patience());
        sent = true;
      });
}

/// Who waits for the stream alone has nevertheless sent.
TEST(StagedCommunicator, SendsWhatItsStreamHasPassedBeforeItGoesAway) {
  std::atomic<bool> passed{false};
  run_with_a_server(
      [&](Communicator& world, device::Device& device, device::Stream& stream) {
        const device::Buffer data = device.allocate(64);
        const Transfer sends[] = {send_to(1, data.data(), 64)};
        world.exchange(sends, stream);
        stream.synchronize();
        passed = true;
      },
      [&](Communicator& host, device::Stream& stream) {
        while (!passed) std::this_thread::yield();
        std::vector<std::byte> data(64);
        const Transfer receives[] = {receive_from(0, data.data(), 64)};
        host.exchange(receives, stream);
        EXPECT_NO_THROW(host.synchronize(stream, patience()));
      });
}

/// Its peer hears of an error at once.
TEST(StagedCommunicator, SendsNothingMoreWhenAnErrorEndsIt) {
  std::atomic<bool> gone{false};
  run_group(2, [&](Communicator& group) {
    auto host = group.split(0, group.rank());
    if (group.rank() == 1) {
      while (!gone) std::this_thread::yield();
      const auto cpu = device::make_cpu_device();
      const auto stream = cpu->create_stream("server");
      std::vector<std::byte> data(64);
      const Transfer receives[] = {receive_from(0, data.data(), 64)};
      EXPECT_THAT(comm_error_of([&] {
                    host->exchange(receives, *stream);
                    host->synchronize(*stream, patience());
                  }),
                  HasSubstr("operations outstanding"));
      return;
    }
    const auto device = make_device(0);
    const device::Buffer data = device->allocate(64);
    const auto stream = device->create_stream("lane");
    try {
      const auto world = make_staged_communicator(std::move(host), *device, staging_of(64));
      const Transfer sends[] = {send_to(1, data.data(), 64)};
      world->exchange(sends, *stream);
      stream->synchronize();
      throw DataError("a file is damaged");
    } catch (const DataError&) {
      gone = true;
    }
  });
}

/// A GPU whose host's memory is used up.
class FullHost : public device::EmulatedDevice {
 public:
  FullHost() : device::EmulatedDevice(device::EmulatedOptions{}) {}
  bool is_full = false;

 protected:
  void* allocate_host_bytes(int64_t size_bytes) override {
    if (is_full) throw DeviceError("no pinned memory is left");
    return device::EmulatedDevice::allocate_host_bytes(size_bytes);
  }
};

/// Later operations would be taken for that one.
TEST(StagedCommunicator, AnOperationThatFailsHalfwayIsTheLast) {
  std::atomic<int> ready{0};
  run_group(2, [&](Communicator& group) {
    FullHost device;
    const auto stream = device.create_stream("lane");
    device::Buffer data = device.allocate(1024);
    const auto world = make_staged_communicator(group.split(0, group.rank()), device, staging_of(64));
    world->barrier(*stream);
    world->synchronize(*stream, patience());
    ++ready;  // none is gone before the others' barrier is complete
    while (ready < 2) std::this_thread::yield();
    device.is_full = true;
    EXPECT_THROW(world->all_reduce(data.data(), 256, DType::float32, ReduceOp::sum, *stream), DeviceError);
    device.is_full = false;
    EXPECT_THAT(comm_error_of([&] { world->barrier(*stream); }), HasSubstr("no pinned memory is left"));
    stream->synchronize();
  });
}

TEST(StagedCommunicator, AnAbortFreesAStreamThatWaitsForItsMemory) {
  run_with_a_server(
      [&](Communicator& world, device::Device& device, device::Stream& stream) {
        const device::Buffer data = device.allocate(64);
        for (int message = 0; message < 3; ++message) {
          const Transfer sends[] = {send_to(1, data.data(), 64)};
          world.exchange(sends, stream);
        }
        for (int turn = 0; turn < 20; ++turn) world.test();
        world.abort("the server was lost");
        stream.synchronize();
        EXPECT_THAT(comm_error_of([&] { world.test(); }), HasSubstr("the server was lost"));
      },
      [](Communicator&, device::Stream&) {});
}

TEST(EmulatedCommunicator, NothingHappensBeforeTheDeviceWorks) {
  run_on_devices(1, [](Communicator& world, device::Device& device) {
    const auto stream = device.create_stream("lane");
    bool before = false;
    stream->launch([&] { before = true; });
    world.barrier(*stream);
    EXPECT_FALSE(before);
    world.synchronize(*stream, patience());
    EXPECT_TRUE(before);
  });
}

/// An executor waits for streams: it learns there of what its communicator met, and the other lanes' work
/// still runs.
TEST(EmulatedCommunicator, AnotherRanksAbortFailsTheStreamThatWaitsForIt) {
  run_on_devices(2, [](Communicator& world, device::Device& device) {
    if (world.rank() == 1) return world.abort("rank 1 ran out of data");
    const auto lane = device.create_stream("lane"), other = device.create_stream("other");
    bool behind = false, beside = false;
    world.barrier(*lane);
    lane->launch([&] { behind = true; });
    other->launch([&] { beside = true; });
    EXPECT_THAT(comm_error_of([&] { lane->synchronize(); }), HasSubstr("rank 1"));
    EXPECT_THAT(comm_error_of([&] { world.check_health(); }), HasSubstr("rank 1"));
    other->synchronize();
    EXPECT_FALSE(behind);
    EXPECT_TRUE(beside);
  });
}

TEST(EmulatedCommunicator, TheBootstrapMayGoFirst) {
  auto ranks = make_local_communicators(2);
  std::vector<std::thread> threads;
  for (auto& group : ranks)
    threads.emplace_back([&group] {
      const auto device = make_device(group->rank());
      const auto world = make_gpu_communicator(*group, *device);
      group.reset();
      const auto stream = device->create_stream("lane");
      world->barrier(*stream);
      world->synchronize(*stream, patience());
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace lockstep::comm
