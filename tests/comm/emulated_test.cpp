// Communicators of the emulated GPU, with threads as ranks, each with a GPU of its own.

#include <gmock/gmock.h>

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
