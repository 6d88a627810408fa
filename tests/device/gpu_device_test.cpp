// What every GPU must do, the emulated one and a real one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "device/device.h"
#include "lockstep/error.h"

namespace lockstep::device {
namespace {

class GpuDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const GpuProbe probe = probe_gpus(); probe.devices.empty())
      GTEST_SKIP() << probe.problem << ": ONLY_SKIPPED_TESTS";
    device_ = make_cuda_device(0);
  }
  std::vector<int> download(const void* data, size_t count) {
    std::vector<int> values(count);
    device_->copy_now(values.data(), data, static_cast<int64_t>(count * sizeof(int)));
    return values;
  }

  std::unique_ptr<Device> device_;
};

TEST_F(GpuDeviceTest, IsKnownByNameAndNumber) {
  const auto devices = probe_gpus().devices;
  EXPECT_EQ(device_->kind(), DeviceKind::cuda);
  EXPECT_EQ(device_->description(), devices[0].name);
  EXPECT_THAT(devices[0].uuid, ::testing::StartsWith("GPU-"));
  EXPECT_GE(devices[0].compute_capability, 75);
  EXPECT_FALSE(device_->shares_host_memory());
  EXPECT_THROW(make_cuda_device(1000), DeviceError);
}

TEST_F(GpuDeviceTest, MemoryBeginsAsZerosAlignedAndCounted) {
  const Buffer buffer = device_->allocate(1000 * 4);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
  EXPECT_EQ(download(buffer.data(), 1000), std::vector<int>(1000, 0));
  EXPECT_EQ(device_->memory_use().current_bytes, 4000);
  const Buffer host = device_->allocate_host(64);
  EXPECT_EQ(*reinterpret_cast<const uint64_t*>(host.data()), 0u);
  EXPECT_EQ(device_->memory_use().current_bytes, 4000) << "the host's is counted by itself";
  EXPECT_EQ(device_->memory_use(MemoryKind::host).current_bytes, 64);
}

TEST_F(GpuDeviceTest, MoreMemoryThanThereIsIsAnErrorThatSaysHowMuch) {
  try {
    device_->allocate(int64_t{1} << 50);
    FAIL() << "a petabyte was given";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("memory"));
    EXPECT_EQ(error.code(), ExitCode::unavailable);
  }
  EXPECT_EQ(device_->allocate(64).size_bytes(), 64) << "and the next request is served";
}

TEST_F(GpuDeviceTest, CopiesInEveryDirection) {
  const auto stream = device_->create_stream("copy");
  const Buffer pinned = device_->allocate_host(4000), there = device_->allocate(4000),
               elsewhere = device_->allocate(4000);
  auto* numbers = reinterpret_cast<int*>(pinned.data());
  std::iota(numbers, numbers + 1000, 7);
  std::vector<int> back(1000);
  stream->copy(there.data(), pinned.data(), 4000);
  stream->copy(elsewhere.data(), there.data(), 4000);
  stream->copy(back.data(), elsewhere.data(), 4000);
  stream->synchronize();
  EXPECT_EQ(back, std::vector<int>(numbers, numbers + 1000));
}

TEST_F(GpuDeviceTest, WhatIsCopiedNowIsThereForEveryStream) {
  const auto stream = device_->create_stream("copy");
  const Buffer there = device_->allocate(1 << 20), back = device_->allocate_host(1 << 20);
  for (int round = 1; round <= 20; ++round) {
    const std::vector<int> pageable((1 << 20) / 4, round);
    device_->copy_now(there.data(), pageable.data(), 1 << 20);
    stream->copy(back.data(), there.data(), 1 << 20);
    stream->synchronize();
    ASSERT_EQ(reinterpret_cast<const int*>(back.data())[(1 << 18) - 1], round);
  }
}

TEST_F(GpuDeviceTest, EventsOrderStreams) {
  const auto first = device_->create_stream("first"), second = device_->create_urgent_stream("second");
  const auto event = device_->create_event();
  const Buffer one = device_->allocate(1 << 24), two = device_->allocate(1 << 24),
               pinned = device_->allocate_host(1 << 24);
  for (int round = 1; round <= 20; ++round) {
    auto* numbers = reinterpret_cast<int*>(pinned.data());
    std::fill(numbers, numbers + (1 << 22), round);
    first->copy(one.data(), pinned.data(), 1 << 24);
    first->record(*event);
    second->wait(*event);
    second->copy(two.data(), one.data(), 1 << 24);
    second->synchronize();
    EXPECT_TRUE(event->ready());
    ASSERT_EQ(download(two.data() + (1 << 24) - 4, 1)[0], round);
  }
}

TEST_F(GpuDeviceTest, AnEventThatWasNeverRecordedIsReady) {
  const auto event = device_->create_event();
  EXPECT_TRUE(event->ready());
  event->synchronize();
  const auto stream = device_->create_stream("compute");
  stream->wait(*event);
  stream->synchronize();
  EXPECT_TRUE(stream->idle());
}

TEST_F(GpuDeviceTest, TimedEventsTellTheTimeBetweenThem) {
  const auto stream = device_->create_stream("copy");
  const auto begin = device_->create_event(true), end = device_->create_event(true);
  const Buffer one = device_->allocate(1 << 22), two = device_->allocate(1 << 22);
  stream->record(*begin);
  stream->copy(two.data(), one.data(), 1 << 22);
  stream->record(*end);
  stream->synchronize();
  EXPECT_GT(end->milliseconds_since(*begin), 0);
  EXPECT_EQ(begin->milliseconds_since(*begin), 0);
}

TEST_F(GpuDeviceTest, WordsAreWrittenInTheStreamsOrder) {
  const auto stream = device_->create_stream("compute");
  alignas(4096) static std::atomic<uint64_t> shared_words[512];
  if (const auto problem = device_->share_host_memory(shared_words, sizeof shared_words); !problem.empty())
    GTEST_SKIP() << problem;
  const Buffer pinned = device_->allocate_host(8);
  auto& own = *reinterpret_cast<std::atomic<uint64_t>*>(pinned.data());
  for (uint64_t value = 1; value <= 3; ++value) {
    stream->write_word(own, value);
    stream->write_word(shared_words[5], value << 40);
  }
  stream->synchronize();
  EXPECT_EQ(own.load(), 3u);
  EXPECT_EQ(shared_words[5].load(), uint64_t{3} << 40);
}

}  // namespace
}  // namespace lockstep::device
