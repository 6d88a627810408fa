// What only CUDA can say of its streams.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "device/device.h"

namespace lockstep::device {
namespace {

int priority_of(const Stream& stream) {
  int priority = 0;
  EXPECT_EQ(cudaStreamGetPriority(static_cast<cudaStream_t>(stream.native()), &priority), cudaSuccess);
  return priority;
}

TEST(CudaStreams, UrgentOnesComeBeforeOthers) {
  if (const GpuProbe probe = probe_gpus(); probe.devices.empty())
    GTEST_SKIP() << probe.problem << ": ONLY_SKIPPED_TESTS";
  const auto device = make_cuda_device(0);
  EXPECT_EQ(priority_of(*device->create_stream("compute")), 0);
  EXPECT_LT(priority_of(*device->create_urgent_stream("reduce")), 0) << "lower numbers come first";
}

}  // namespace
}  // namespace lockstep::device
