#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "observe/machine/figures.h"
#include "observe/machine/report.h"
#include "observe/machine/sampler.h"

namespace lockstep::observe {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

/// Two GPUs of tests/device/nvml/stand_in_nvml.cpp: the first has MIG slices, the second is hot.
class GpuSampling : public ::testing::Test {
 protected:
  GpuSampling() {
    for (const auto& [name, value] : settings_) ::setenv(name, value, 1);
  }
  ~GpuSampling() override {
    for (const auto& [name, value] : settings_) ::unsetenv(name);
  }
  static MachineSample sample(GpuSampler& sampler, double now) {
    MachineSample sample{.subject = {.host = "a", .rank = 3, .slice = {}, .uuid = {}, .model = {}},
                         .figures = {},
                         .seconds = 2};
    sampler.add_to(sample, now);
    return sample;
  }

 private:
  const std::map<const char*, const char*> settings_{
      {"STAND_IN_GPUS", "2"}, {"STAND_IN_SLICED", "0"}, {"STAND_IN_HOT", "1"}, {"STAND_IN_NVLINK", "1"}};
};

TEST_F(GpuSampling, AHotGpuHasAllFigures) {
  GpuSampler sampler("GPU-00000000-0000-0000-0000-000000000001");
  ASSERT_TRUE(sampler.found());
  sample(sampler, 1);
  const MachineSample now = sample(sampler, 3);
  EXPECT_EQ(group_of(now.subject, true), "a.gpu1");
  EXPECT_EQ(now.subject.rank, 3);
  EXPECT_EQ(now.subject.model, "NVIDIA H100");
  EXPECT_THAT(now.held_down_by, ElementsAre("software thermal slowdown", "hardware thermal slowdown"));
  const std::map<std::string, double> figures(now.figures.begin(), now.figures.end());
  EXPECT_EQ(figures.at("nvlink_sent_bytes_per_second"), 0);  // the stand-in's counters stand still
  for (const auto& figure : machine_figures())
    if (figure.subject == MachineSubject::Kind::gpu)
      EXPECT_TRUE(figures.contains(std::string(figure.field))) << figure.field;
  EXPECT_EQ(figures.size(), now.figures.size());

  MachineSummary summary;
  summary.add(now);
  const MachineReport report = summary.reports().at(0);
  EXPECT_EQ(report.find("temperature_celsius")->max, 88);
  EXPECT_EQ(report.find("utilization_percent")->p95, 81);
  EXPECT_THAT(report.held_down_by,
              ElementsAre(Pair("hardware thermal slowdown", 1), Pair("software thermal slowdown", 1)));
}

TEST_F(GpuSampling, ASliceHasNoUseInsteadOfNone) {
  GpuSampler sampler("MIG-00000000-0000-0000-0000-0000000000a1");
  const MachineSample now = sample(sampler, 1);
  EXPECT_EQ(group_of(now.subject, false), "gpu0.slice0");
  const std::map<std::string, double> figures(now.figures.begin(), now.figures.end());
  EXPECT_FALSE(figures.contains("utilization_percent"));
  EXPECT_EQ(figures.at("memory_size_bytes"), 10.0 * (1LL << 30));
}

}  // namespace
}  // namespace lockstep::observe
