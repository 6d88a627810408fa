#include "device/device.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "lockstep/error.h"

// Sanitizers would otherwise end the program where malloc gives null.
extern "C" [[gnu::visibility("default")]] const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" [[gnu::visibility("default")]] const char* __tsan_default_options() {
  return "allocator_may_return_null=1";
}

namespace lockstep::device {
namespace {

using ::testing::HasSubstr;

TEST(Buffer, IsZeroedAndAligned) {
  const auto device = make_cpu_device();
  const Buffer buffer = device->allocate(1001);
  EXPECT_EQ(buffer.size_bytes(), 1001);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0u);
  EXPECT_TRUE(
      std::all_of(buffer.data(), buffer.data() + 1001, [](std::byte b) { return b == std::byte{0}; }));
}

TEST(Buffer, OfNothingHoldsNothing) {
  const auto device = make_cpu_device();
  const Buffer buffer = device->allocate(0);
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.size_bytes(), 0);
  EXPECT_EQ(device->memory_use().allocations, 0);
}

TEST(Buffer, GivesItsMemoryBackOnce) {
  const auto device = make_cpu_device();
  {
    Buffer first = device->allocate(100);
    std::byte* const data = first.data();
    Buffer second = std::move(first);
    EXPECT_EQ(second.data(), data);
    EXPECT_EQ(first.data(), nullptr);
    EXPECT_EQ(device->memory_use().current_bytes, 100);
    second = device->allocate(50);  // frees the hundred
    EXPECT_EQ(device->memory_use().current_bytes, 50);
    Buffer& same = second;
    second = std::move(same);
    EXPECT_EQ(device->memory_use().current_bytes, 50);
  }
  EXPECT_EQ(device->memory_use().current_bytes, 0);
}

TEST(Device, CountsWhatItGives) {
  const auto device = make_cpu_device();
  EXPECT_EQ(device->memory_use().peak_bytes, 0);
  Buffer a = device->allocate(300);
  { const Buffer b = device->allocate(200); }
  const Buffer c = device->allocate(100);
  const MemoryUse use = device->memory_use();
  EXPECT_EQ(use.current_bytes, 400);
  EXPECT_EQ(use.peak_bytes, 500);
  EXPECT_EQ(use.allocations, 3);
}

TEST(Device, CountsTheHostsMemoryByItself) {
  const auto device = make_cpu_device();
  const Buffer a = device->allocate(300);
  { const Buffer b = device->allocate_host(200); }
  const Buffer c = device->allocate_host(100);
  EXPECT_EQ(device->memory_use().current_bytes, 300);
  EXPECT_EQ(device->memory_use().allocations, 1);
  const MemoryUse host = device->memory_use(MemoryKind::host);
  EXPECT_EQ(host.current_bytes, 100);
  EXPECT_EQ(host.peak_bytes, 200);
  EXPECT_EQ(host.allocations, 2);
}

TEST(Device, CountsExactlyFromManyThreads) {
  const auto device = make_cpu_device();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 250; ++i) device->allocate(64);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(device->memory_use().allocations, 1000);
  EXPECT_EQ(device->memory_use().current_bytes, 0);
  EXPECT_GE(device->memory_use().peak_bytes, 64);
}

TEST(Device, NamesTheSizeThatItCannotGive) {
  const auto device = make_cpu_device();
  try {
    device->allocate(int64_t{1} << 60);
    FAIL() << "an exbibyte was allocated";
  } catch (const DeviceError& error) {
    EXPECT_THAT(error.what(), HasSubstr("1.00 EiB"));
    EXPECT_THAT(error.what(), HasSubstr("are free"));
  }
  EXPECT_EQ(device->memory_use().current_bytes, 0);
  EXPECT_EQ(device->memory_use().allocations, 0);
}

TEST(Device, RefusesANegativeSize) { EXPECT_THROW(make_cpu_device()->allocate(-1), InternalError); }

TEST(Device, KnowsItsKind) {
  EXPECT_EQ(make_cpu_device()->kind(), DeviceKind::cpu);
  EXPECT_EQ(make_async_cpu_device({})->kind(), DeviceKind::async_cpu);
  EXPECT_EQ(name_of(DeviceKind::async_cpu), "async_cpu");
  EXPECT_EQ(name_of(DeviceKind::cuda), "cuda");
}

TEST(CpuStream, RunsWorkOnTheCallingThread) {
  const auto device = make_cpu_device();
  const auto stream = device->create_stream("compute");
  EXPECT_EQ(stream->name(), "compute");
  std::thread::id worker;
  stream->launch([&] { worker = std::this_thread::get_id(); });
  EXPECT_EQ(worker, std::this_thread::get_id());
  EXPECT_THROW(stream->launch([] { throw DataError("bad sample"); }), DataError);
  const auto event = device->create_event();
  stream->record(*event);
  stream->wait(*event);
  EXPECT_TRUE(event->ready());
}

}  // namespace
}  // namespace lockstep::device
