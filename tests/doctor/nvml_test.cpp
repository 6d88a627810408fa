#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "doctor/gpu.h"

namespace lockstep::doctor {
namespace {

using testing::HasSubstr;

/// GPUs of tests/device/nvml/stand_in_nvml.cpp.
class Nvml : public testing::Test {
 protected:
  ~Nvml() override {
    for (const auto& [name, value] : set_) ::unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    set_[name] = value;
    ::setenv(name.c_str(), value.c_str(), 1);
  }
  /// What is said of them, without a log of the kernel.
  std::vector<Finding> judged() { return judge_gpus(device::nvml_facts(), std::map<int, int>{}); }
  void expect(const std::string& name, const std::string& value, Level level, const std::string& found,
              const std::string& fix) {
    set("STAND_IN_GPUS", "1");
    set(name, value);
    const auto findings = judged();
    ASSERT_EQ(findings.size(), 3u) << name;  // driver, GPU, log
    EXPECT_EQ(findings[1].level, level) << name;
    EXPECT_THAT(findings[1].found, HasSubstr(found));
    EXPECT_EQ(findings[1].fix, fix);
    ::unsetenv(name.c_str());
  }

 private:
  std::map<std::string, std::string> set_;
};

TEST_F(Nvml, GpusInOrderAreListedWithTheirTopology) {
  set("STAND_IN_GPUS", "3");
  const auto findings = judged();
  ASSERT_EQ(findings.size(), 6u);
  for (const auto& each : findings) EXPECT_EQ(each.level, Level::ok) << each.found;
  EXPECT_EQ(findings[0].found, "driver 580.65.06, 3 GPUs");
  EXPECT_EQ(findings[2].found, "GPU 1: NVIDIA H100, 80.00 GiB, 700 W, 0 uncorrected ECC errors");
  EXPECT_EQ(findings[5].found, "topology: all pairs by the link between processors");
  set("STAND_IN_NVLINK", "1");
  EXPECT_EQ(judged()[5].found, "topology: all pairs by NVLink");
}

TEST_F(Nvml, WhatIsWrongWithAGpuIsNamedWithACommand) {
  expect("STAND_IN_ECC", "4", Level::warn, "4 uncorrected ECC errors", "nvidia-smi -i 0 --gpu-reset");
  expect("STAND_IN_PENDING", "1", Level::warn, "needs a reset", "nvidia-smi -i 0 --gpu-reset");
  expect("STAND_IN_BROKEN", "1", Level::fail, "no spare",
         "nvidia-smi -i 0 -q -d ROW_REMAPPER, and have it replaced");
  expect("STAND_IN_MIG", "1", Level::warn, "MIG slices", "nvidia-smi -i 0 -mig 0");
  expect("STAND_IN_POWER", "350", Level::warn, "350 W", "nvidia-smi -i 0 -pl 700");
  expect("STAND_IN_PERSISTENT", "0", Level::warn, "persistence is off", "nvidia-smi -i 0 -pm 1");
}

TEST_F(Nvml, ADriverWithoutGpusAndOneThatDoesNotAnswerAreFailures) {
  auto findings = judged();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_EQ(findings[0].level, Level::fail);
  EXPECT_EQ(findings[0].found, "there is a driver, but no GPU");
  set("STAND_IN_NVML_STATUS", "9");
  findings = judged();
  ASSERT_EQ(findings.size(), 1u);
  EXPECT_THAT(findings[0].found, HasSubstr("nvmlInit_v2 returns 9"));
}

TEST_F(Nvml, AGpuThatIsLostIsAFailureBesideTheOthers) {
  set("STAND_IN_GPUS", "2");
  set("STAND_IN_LOST", "0");
  const auto findings = judged();
  ASSERT_EQ(findings.size(), 4u);
  EXPECT_EQ(findings[1].level, Level::fail);
  EXPECT_THAT(findings[1].found, HasSubstr("GPU 0 does not answer"));
  EXPECT_THAT(findings[2].found, HasSubstr("GPU 1: "));
}

}  // namespace
}  // namespace lockstep::doctor
