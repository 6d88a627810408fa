#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "observe/advice.h"
#include "observe/machine/figures.h"
#include "observe/machine/report.h"
#include "observe/machine/sampler.h"
#include "observe/run_report.h"

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

/// Rules that apply to a run that computes all the time, on these GPUs.
std::vector<std::string> rules(const std::vector<MachineSample>& samples, bool float32) {
  RunReport report;
  report.steps = 10;
  report.explanation.emplace();
  RankExplanation rank{.wall_ms = 1000};
  nth(rank.parts_ms, static_cast<int>(TimePart::compute)) = 1000;
  report.explanation->ranks = {rank};
  MachineSummary summary;
  for (const MachineSample& sample : samples) summary.add(sample);
  report.machines = summary.reports();
  std::vector<std::string> names;
  for (const Advice& one : advise(report, {.on_gpus = true, .float32 = float32})) {
    names.push_back(one.rule);
    if (one.rule != "precision") EXPECT_NE(one.saw.find("GPU 1 of a"), std::string::npos) << one.saw;
  }
  std::ranges::sort(names);
  return names;
}

TEST_F(GpuSampling, AdviceNamesTheGpuThatIsHotOrLittleUsed) {
  GpuSampler hot("GPU-00000000-0000-0000-0000-000000000001");
  EXPECT_THAT(rules({sample(hot, 1)}, true), ElementsAre("hot_gpu", "precision"));
  EXPECT_THAT(rules({sample(hot, 2)}, false), ElementsAre("hot_gpu"));
  ::unsetenv("STAND_IN_HOT");
  EXPECT_THAT(rules({sample(hot, 3)}, false), ElementsAre()) << "as it should be";
  ::setenv("STAND_IN_USE", "30", 1);
  EXPECT_THAT(rules({sample(hot, 4)}, false), ElementsAre()) << "its memory is full";
  ::setenv("STAND_IN_GIB_USED", "5", 1);
  EXPECT_THAT(rules({sample(hot, 5)}, false), ElementsAre("small_batch"));
  ::unsetenv("STAND_IN_USE");
  ::unsetenv("STAND_IN_GIB_USED");
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
