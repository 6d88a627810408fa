#include "run/device_stamps.h"

#include <gtest/gtest.h>

#include <thread>

namespace lockstep::run {
namespace {

// Streams of the asynchronous CPU device work by themselves, and have a clock that only events tell.
TEST(DeviceStamps, LieBetweenTheHostsStampsAroundThem) {
  const auto device = device::make_async_cpu_device({});
  StampRecorder recorder;
  recorder.open(7, 2, 100);
  DeviceStamps stamps(*device, recorder, 2);
  const auto stream = device->create_stream("lane");
  const auto before = Clock::now();
  for (const uint64_t iteration : {6, 7, 8, 9}) {
    const auto place = static_cast<int>(iteration % 2);
    stamps.begin_iteration(place, iteration);
    for (const int instruction : {0, 1}) {
      stamps.before(place, instruction, *stream);
      stream->launch([] { std::this_thread::yield(); });
      stamps.after(place, instruction, *stream);
    }
    stream->synchronize();
    stamps.collect(place);
  }
  stamps.settle();
  const auto after = Clock::now();
  const auto taken = recorder.stamps();
  ASSERT_EQ(taken.size(), 4U) << "two instructions of the iterations 7 and 8";
  const auto error = std::chrono::duration<double, std::milli>(recorder.device_error_ms());
  for (const Stamp& stamp : taken) {
    EXPECT_GE(stamp.begin + error, before);
    EXPECT_LE(stamp.begin, stamp.end);
    EXPECT_LE(stamp.end - error, after);
  }
  EXPECT_LE(taken[0].end, taken[1].begin);
  EXPECT_LE(taken[1].end, taken[2].begin);
  EXPECT_GT(recorder.device_error_ms(), 0);
}

}  // namespace
}  // namespace lockstep::run
