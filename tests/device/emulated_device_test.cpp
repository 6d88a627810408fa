#include "device/emulated/emulated_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "device/cuda/kernel.h"
#include "device/emulated_gpu_test.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::device {
namespace {

__global__ void scale_kernel(float* data, float factor, int64_t count) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x)
    data[i] *= factor;
}

__global__ void sum_kernel(const float* data, double* sums, int64_t count) {
  __shared__ double scratch[33];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += data[i];
  sum = block_sum(sum, scratch);
  sums[threadIdx.x] = sum;
}

/// Reverses the block's elements; without its barrier, some threads read what is not yet written.
template <bool with_barrier>
__global__ void reverse_kernel(float* data) {
  float* shared = dynamic_shared<float>();
  shared[threadIdx.x] = data[threadIdx.x];
  if (with_barrier) __syncthreads();
  data[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}

__global__ void lonely_barrier_kernel() {
  if (threadIdx.x < 48) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

__global__ void warp_kernel(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  out[lane] = __shfl_sync(kFullWarp, lane * 10, 3);
  out[32 + lane] = __shfl_xor_sync(kFullWarp, lane, 5);
  out[64 + lane] = __shfl_down_sync(kFullWarp, lane, 4);
  out[96 + lane] = static_cast<int>(__ballot_sync(kFullWarp, lane % 2 == 1));
  out[128 + lane] = __shfl_sync(kFullWarp, lane, 1, 8);
}

/// Moves four elements at once, the way kernels do, to and from any element.
__global__ void pack_kernel(const float* from, float* to) {
  using Four = Pack<float, 4>;
  *reinterpret_cast<Four*>(to) = *reinterpret_cast<const Four*>(from);
}
__global__ void shared_pack_kernel(float* to, int first) {
  float* shared = dynamic_shared<float>();
  for (int i = 0; i < 8; ++i) shared[i] = static_cast<float>(i);
  const float4 four = *reinterpret_cast<const float4*>(shared + first);
  to[0] = four.x;
}
__global__ void empty_kernel() {}

using EmulatedDeviceTest = EmulatedGpuTest;

TEST_F(EmulatedDeviceTest, NothingRunsBeforeTheHostWaits) {
  const Buffer data = upload<float>({1, 2, 3});
  launch(*stream_, {.blocks = 2, .threads = 2}, scale_kernel, at<float>(data), 2.0f, 3);
  EXPECT_EQ(download<float>(data), (std::vector<float>{1, 2, 3}));
  stream_->synchronize();
  EXPECT_EQ(download<float>(data), (std::vector<float>{2, 4, 6}));
}

TEST_F(EmulatedDeviceTest, WorksForAMomentWhenAskedWhetherItIsIdle) {
  bool peer_is_there = false;
  dynamic_cast<EmulatedStream&>(*stream_).launch_polled([&] { return peer_is_there; });
  EXPECT_FALSE(stream_->idle());
  peer_is_there = true;
  EXPECT_TRUE(stream_->idle());
  stream_->launch([] { throw DeviceError("the kernel is broken"); });
  EXPECT_THROW(stream_->idle(), DeviceError);
}

TEST_F(EmulatedDeviceTest, WritesNoWordsAfterItHasRefused) {
  EmulatedDevice refusing({.writes_words = false});
  std::atomic<uint64_t> word = 7;
  EXPECT_EQ(device_.share_host_memory(&word, sizeof word), "");
  EXPECT_NE(refusing.share_host_memory(&word, sizeof word), "");
  EXPECT_THROW(refusing.create_stream("compute")->write_word(word, 8), InternalError);
  EXPECT_EQ(word, 7u);
}

TEST_F(EmulatedDeviceTest, BlockSumGivesEveryThreadTheSum) {
  std::vector<float> values(1000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Buffer data = upload(values), sums = device_.allocate(256 * 8);
  launch(*stream_, {.blocks = 1, .threads = 256}, sum_kernel, at<float>(data), at<double>(sums), 1000);
  stream_->synchronize();
  EXPECT_EQ(download<double>(sums), std::vector<double>(256, 499500.0));
}

TEST_F(EmulatedDeviceTest, BarriersOrderSharedMemoryAndTheirLackShows) {
  std::vector<float> values(96), reversed(96);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i), reversed[95 - i] = static_cast<float>(i);
  const Buffer with = upload(values), without = upload(values);
  launch(*stream_, {.blocks = 1, .threads = 96, .shared_bytes = 96 * 4}, reverse_kernel<true>,
         at<float>(with));
  launch(*stream_, {.blocks = 1, .threads = 96, .shared_bytes = 96 * 4}, reverse_kernel<false>,
         at<float>(without));
  stream_->synchronize();
  EXPECT_EQ(download<float>(with), reversed);
  EXPECT_NE(download<float>(without), reversed);
}

TEST_F(EmulatedDeviceTest, ThreadsThatMeetNobodyAreAnError) {
  launch(*stream_, {.blocks = 1, .threads = 64}, lonely_barrier_kernel);
  EXPECT_THROW(stream_->synchronize(), InternalError);
}

TEST_F(EmulatedDeviceTest, PackedAccessesMustBeAligned) {
  const Buffer from = upload<float>({1, 2, 3, 4, 5, 6, 7, 8}), to = device_.allocate(8 * 4);
  launch(*stream_, {.blocks = 1, .threads = 1}, pack_kernel, at<float>(from) + 4, at<float>(to));
  stream_->synchronize();
  EXPECT_EQ(download<float>(to)[0], 5.0f);
  const auto expect_refused = [&](auto kernel, auto... arguments) {
    const auto stream = device_.create_stream("its own, since an error stays");
    launch(*stream, {.blocks = 1, .threads = 1, .shared_bytes = 32}, kernel, arguments...);
    try {
      stream->synchronize();
      FAIL() << "nobody refused the access";
    } catch (const InternalError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("emulated_device_test.cpp:"));
      EXPECT_THAT(error.what(), Mentions("16 ... 8 bytes"));
    }
  };
  expect_refused(pack_kernel, at<float>(from) + 2, at<float>(to));
  expect_refused(pack_kernel, at<float>(from), at<float>(to) + 2);
  expect_refused(shared_pack_kernel, at<float>(to), 2);
}

TEST_F(EmulatedDeviceTest, TakesWhatGridsGpusTake) {
  const auto start = [&](dim3 blocks, dim3 threads, size_t shared_bytes = 0) {
    launch(*stream_, {blocks, threads, shared_bytes}, empty_kernel);
  };
  const size_t most_shared = kMostShared - kMostStaticShared;
  EXPECT_NO_THROW(start(1, {32, 32, 1}, most_shared));
  EXPECT_NO_THROW(start({1, 65535, 1}, {1, 1, 64}));
  stream_->synchronize();
  for (const dim3& blocks :
       {dim3(0x80000000u), dim3(1, 65536), dim3(1, 1, 65536), dim3(0), dim3(1, 0), dim3(1, 1, 0)})
    EXPECT_THROW(start(blocks, 1), InternalError) << blocks.x << ", " << blocks.y << ", " << blocks.z;
  for (const dim3& threads :
       {dim3(1025), dim3(1, 1025), dim3(1, 1, 65), dim3(32, 33), dim3(0), dim3(1, 0), dim3(1, 1, 0)})
    EXPECT_THROW(start(1, threads), InternalError) << threads.x << ", " << threads.y << ", " << threads.z;
  EXPECT_THROW(start(1, 1, most_shared + 1), InternalError);
}

TEST_F(EmulatedDeviceTest, WarpsExchangeValues) {
  const Buffer out = device_.allocate(160 * 4);
  launch(*stream_, {.blocks = 1, .threads = 32}, warp_kernel, at<int>(out));
  stream_->synchronize();
  const auto values = download<int>(out);
  for (int lane = 0; lane < 32; ++lane) {
    const auto l = static_cast<size_t>(lane);
    EXPECT_EQ(values[l], 30);
    EXPECT_EQ(values[32 + l], lane ^ 5);
    EXPECT_EQ(values[64 + l], lane + 4 < 32 ? lane + 4 : lane);
    EXPECT_EQ(static_cast<unsigned>(values[96 + l]), 0xaaaaaaaau);
    EXPECT_EQ(values[128 + l], lane / 8 * 8 + 1);
  }
}

TEST_F(EmulatedDeviceTest, EventsOrderStreamsAndTheirLackShows) {
  const auto other = device_.create_stream("copy");
  const auto event = device_.create_event();
  int wrong = 0;
  for (int i = 0; i < 50; ++i) {
    const Buffer data = upload<float>({1});
    std::vector<float> ordered(1), unordered(1);
    other->copy(unordered.data(), data.data(), 4);
    launch(*stream_, {.blocks = 1, .threads = 1}, scale_kernel, at<float>(data), 2.0f, 1);
    stream_->record(*event);
    other->wait(*event);
    other->copy(ordered.data(), data.data(), 4);
    other->synchronize();
    EXPECT_EQ(ordered[0], 2.0f);
    wrong += unordered[0] == 2.0f;
  }
  EXPECT_GT(wrong, 0);
  EXPECT_LT(wrong, 50);
}

TEST_F(EmulatedDeviceTest, AnErrorReachesWhoWaitsForItsEvent) {
  const auto other = device_.create_stream("copy");
  const auto event = device_.create_event();
  stream_->launch([] { throw DataError("broken"); });
  stream_->record(*event);
  other->wait(*event);
  EXPECT_THROW(other->synchronize(), DataError);
  EXPECT_THROW(event->synchronize(), DataError);
}

TEST_F(EmulatedDeviceTest, WordsTellOfProgress) {
  const Buffer word = device_.allocate_host(8);
  auto& progress = *reinterpret_cast<std::atomic<uint64_t>*>(word.data());
  stream_->write_word(progress, 17);
  EXPECT_EQ(progress.load(), 0u);
  stream_->synchronize();
  EXPECT_EQ(progress.load(), 17u);
}

using EmulatedDeviceDeathTest = EmulatedDeviceTest;

TEST_F(EmulatedDeviceDeathTest, TheHostCannotTouchItsMemory) {
  const Buffer data = upload<float>({1});
  EXPECT_DEATH(std::printf("%f", static_cast<double>(*at<float>(data))), "");
}

}  // namespace
}  // namespace lockstep::device
