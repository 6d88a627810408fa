#include "device/nvml/gpu_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace lockstep::device {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Two GPUs of stand_in_nvml.cpp: the first has MIG slices, the second is hot.
class GpuMonitoring : public testing::Test {
 protected:
  GpuMonitoring() {
    set("STAND_IN_GPUS", "2");
    set("STAND_IN_SLICED", "0");
    set("STAND_IN_HOT", "1");
  }
  ~GpuMonitoring() override {
    for (const auto& name : set_) ::unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    set_.push_back(name);
    ::setenv(name.c_str(), value.c_str(), 1);
  }

  const std::string hot_ = "GPU-00000000-0000-0000-0000-000000000001";
  const std::string slice_ = "MIG-00000000-0000-0000-0000-0000000000a2";

 private:
  std::vector<std::string> set_;
};

TEST_F(GpuMonitoring, AGpuIsFoundByItsUuidAsCudaWritesIt) {
  const GpuMonitor gpu("GPU-00000000000000000000000000000001");
  ASSERT_TRUE(gpu.found());
  EXPECT_EQ(gpu.index(), 1);
  EXPECT_FALSE(gpu.slice());
  EXPECT_EQ(gpu.uuid(), hot_);
  EXPECT_EQ(gpu.name(), "NVIDIA H100");
  EXPECT_FALSE(GpuMonitor("GPU-00000000000000000000000000000007").found());
}

TEST_F(GpuMonitoring, AHotGpuSaysWhatHoldsItsClocksDown) {
  set("STAND_IN_NVLINK", "1");
  set("STAND_IN_XID", "79");
  set("STAND_IN_ECC", "4");
  GpuMonitor gpu(hot_);
  const GpuReading now = gpu.read();
  EXPECT_EQ(now.utilization_percent, 81);
  EXPECT_EQ(now.memory_utilization_percent, 41);
  EXPECT_EQ(now.memory_total_bytes, 80.0 * (1LL << 30));
  EXPECT_EQ(now.memory_used_bytes, 60.0 * (1LL << 30));
  EXPECT_EQ(now.memory_free_bytes, 19.0 * (1LL << 30));
  EXPECT_EQ(now.memory_reserved_bytes, 512.0 * (1 << 20));
  EXPECT_DOUBLE_EQ(now.power_watts.value(), 350.501);
  EXPECT_DOUBLE_EQ(now.power_limit_watts.value(), 700);
  EXPECT_EQ(now.temperature_celsius, 88);
  EXPECT_EQ(now.memory_temperature_celsius, 95);
  EXPECT_EQ(now.sm_clock_megahertz, 1200);
  EXPECT_EQ(now.sm_clock_limit_megahertz, 1980);
  EXPECT_EQ(now.memory_clock_megahertz, 2619);
  EXPECT_THAT(held_down_by(now.clock_event_reasons.value()),
              ElementsAre("software thermal slowdown", "hardware thermal slowdown"));
  EXPECT_EQ(now.ecc_corrected_errors, 12345);
  EXPECT_EQ(now.ecc_uncorrected_errors, 4);
  EXPECT_EQ(now.xid, 79);
  EXPECT_EQ(now.pcie_sent_bytes_per_second, 1e6);
  EXPECT_EQ(now.pcie_received_bytes_per_second, 2e6);
  EXPECT_EQ(now.pcie_replays, 3);
  EXPECT_EQ(now.nvlink_sent_bytes, 10 * 1024);
  EXPECT_EQ(now.nvlink_received_bytes, 20 * 1024);
  EXPECT_EQ(now.energy_joules, 5);
  // The last error stays.
  EXPECT_EQ(gpu.read().xid, 79);
}

TEST_F(GpuMonitoring, ASliceHasItsMemoryButNoUseOfItsOwn) {
  GpuMonitor gpu(slice_);
  ASSERT_TRUE(gpu.found());
  EXPECT_EQ(gpu.index(), 0);
  EXPECT_EQ(gpu.slice(), 1);
  EXPECT_EQ(gpu.uuid(), slice_);
  const GpuReading now = gpu.read();
  EXPECT_EQ(now.memory_total_bytes, 10.0 * (1LL << 30));
  EXPECT_EQ(now.memory_used_bytes, 3.0 * (1LL << 30));
  EXPECT_FALSE(now.utilization_percent);
  EXPECT_FALSE(now.memory_utilization_percent);
  EXPECT_FALSE(now.pcie_sent_bytes_per_second);
  EXPECT_FALSE(now.nvlink_sent_bytes);
  // Of the whole GPU.
  EXPECT_EQ(now.temperature_celsius, 55);
  EXPECT_TRUE(now.power_watts);
}

TEST_F(GpuMonitoring, ADividedGpuHasNoUse) {
  const GpuReading now = GpuMonitor("GPU-00000000-0000-0000-0000-000000000000").read();
  EXPECT_FALSE(now.utilization_percent);
  EXPECT_EQ(now.memory_total_bytes, 80.0 * (1LL << 30));
  EXPECT_THAT(held_down_by(now.clock_event_reasons.value()), IsEmpty());
  EXPECT_FALSE(now.nvlink_sent_bytes);
  EXPECT_EQ(now.xid, 0);
}

TEST_F(GpuMonitoring, OlderDriversStateLess) {
  set("STAND_IN_OLD", "1");
  const GpuReading now = GpuMonitor(hot_).read();
  EXPECT_EQ(now.memory_used_bytes, 1.0 * (1LL << 30));
  EXPECT_FALSE(now.memory_reserved_bytes);
  EXPECT_THAT(held_down_by(now.clock_event_reasons.value()), ElementsAre("software power cap"));
  EXPECT_FALSE(now.xid);
}

TEST_F(GpuMonitoring, WithoutADriverThatAnswersThereIsNothing) {
  set("STAND_IN_NVML_STATUS", "9");
  GpuMonitor gpu(hot_);
  EXPECT_FALSE(gpu.found());
  EXPECT_FALSE(gpu.read().power_watts);
}

}  // namespace
}  // namespace lockstep::device
