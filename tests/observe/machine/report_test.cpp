#include "observe/machine/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/error.h"
#include "observe/run_report.h"

namespace lockstep::observe {
namespace {

using ::testing::AllOf;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Kind = MachineSubject::Kind;

MachineSample sample(Kind kind, std::vector<std::pair<std::string, double>> figures, double seconds = 1) {
  MachineSubject subject{.kind = kind, .host = "a", .slice = {}, .uuid = {}, .model = {}};
  if (kind == Kind::gpu) {
    subject.gpu = 1;
    subject.uuid = "GPU-1";
    subject.model = "H100";
  }
  return {.subject = subject, .figures = std::move(figures), .held_down_by = {}, .seconds = seconds};
}

TEST(MachineSummary, MeansAreWeightedByTime) {
  MachineSummary summary;
  summary.add(sample(Kind::host, {{"processor_share", 0.5}, {"disk_read_bytes_per_second", 100}}, 1));
  summary.add(sample(Kind::host, {{"processor_share", 0.9}, {"disk_read_bytes_per_second", 500}}, 3));
  const auto reports = summary.reports();
  ASSERT_EQ(reports.size(), 1u);
  EXPECT_EQ(reports[0].seconds, 4);
  EXPECT_EQ(reports[0].samples, 2);
  const FigureReport& share = *reports[0].find("processor_share");
  EXPECT_EQ(share.mean, 0.8);
  EXPECT_EQ(share.max, 0.9);
  EXPECT_EQ(share.p5, 0.5);
  EXPECT_EQ(share.p50, 0.9);
  EXPECT_EQ(share.p95, 0.9);
  const FigureReport& read = *reports[0].find("disk_read_bytes_per_second");
  EXPECT_EQ(read.mean, 400);
  EXPECT_EQ(read.max, 500);
  EXPECT_EQ(read.total, 1600);
  EXPECT_EQ(reports[0].find("swap_used_bytes"), nullptr);
}

TEST(MachineSummary, CountersSayByHowMuchTheyGrew) {
  MachineSummary summary;
  summary.add(sample(Kind::gpu, {{"ecc_corrected_errors", 7}, {"power_limit_watts", 700}, {"xid", 0}}));
  MachineSample last =
      sample(Kind::gpu, {{"ecc_corrected_errors", 9}, {"power_limit_watts", 650}, {"xid", 79}});
  last.held_down_by = {"software power cap"};
  summary.add(last);
  const MachineReport report = summary.reports().at(0);
  EXPECT_EQ(report.find("ecc_corrected_errors")->last, 9);
  EXPECT_EQ(report.find("ecc_corrected_errors")->increase, 2);
  EXPECT_EQ(report.find("power_limit_watts")->last, 650);
  EXPECT_EQ(report.find("xid")->last, 79);
  EXPECT_EQ(report.held_down_by.at("software power cap"), 0.5);
}

TEST(MachineSummary, CountersCountFromTheBeginning) {
  MachineSummary summary;
  summary.begin(sample(Kind::gpu, {{"energy_joules", 100}, {"temperature_celsius", 90}}, 0));
  EXPECT_THAT(summary.reports(), IsEmpty()) << "nothing was sampled";
  summary.add(sample(Kind::gpu, {{"energy_joules", 130}, {"temperature_celsius", 60}}));
  const MachineReport report = summary.reports().at(0);
  EXPECT_EQ(report.find("energy_joules")->increase, 30);
  EXPECT_EQ(report.find("temperature_celsius")->max, 60);
  EXPECT_EQ(report.samples, 1);
}

TEST(MachineSummary, AProcessWithANewRankIsTheSameProcess) {
  MachineSummary summary;
  MachineSample process = sample(Kind::process, {{"processor_cores", 1}});
  process.subject.rank = 2;
  summary.add(process);
  process.subject.rank = 1;
  summary.add(process);
  ASSERT_EQ(summary.reports().size(), 1u);
  EXPECT_EQ(summary.reports()[0].subject.rank, 1);
  EXPECT_EQ(summary.reports()[0].samples, 2);
}

TEST(MachineReport, ReadsBackFromItsJson) {
  MachineSummary summary;
  MachineSample gpu = sample(
      Kind::gpu, {{"utilization_percent", 42}, {"energy_joules", 5}, {"pcie_sent_bytes_per_second", 3}});
  gpu.held_down_by = {"sync boost"};
  gpu.subject.slice = 2;
  summary.add(gpu);
  summary.add(sample(Kind::process, {{"processor_cores", 1.5}}));
  summary.add(sample(Kind::host, {{"processor_cores", 4}, {"memory_used_bytes", 1e9}}));
  for (const auto& report : summary.reports()) {
    MachineReport read = parse_machine_report(to_json(report));
    EXPECT_EQ(read, report) << to_json(report);
  }
  EXPECT_THROW(parse_machine_report("{"), DataError);
  EXPECT_THROW(parse_machine_report("{\"rank\":1}"), DataError);
  // What an int64_t cannot hold.
  EXPECT_THROW(parse_machine_report("{\"host\":\"a\",\"seconds\":2,\"samples\":4e108}"), DataError);
}

TEST(MachineReport, IsPartOfTheRunsReport) {
  MachineSummary summary;
  summary.add(
      sample(Kind::host, {{"processor_share", 0.5}, {"memory_used_bytes", 2e9}, {"memory_size_bytes", 4e9}}));
  summary.add(sample(Kind::gpu, {{"utilization_percent", 42}, {"temperature_celsius", 88}}));
  RunReport run;
  run.machines = summary.reports();
  const auto json = nlohmann::json::parse(to_json(run)).at("machine");
  EXPECT_EQ(json.at("hosts").size(), 1u);
  EXPECT_EQ(json.at("hosts")[0].at("processor_share").at("mean"), 0.5);
  EXPECT_EQ(json.at("gpus")[0].at("gpu"), 1);
  EXPECT_EQ(json.at("gpus")[0].at("temperature_celsius").at("max"), 88);
  EXPECT_THAT(json.at("processes"), IsEmpty());
  EXPECT_THAT(describe(run, false),
              AllOf(HasSubstr("gpu1"), HasSubstr("42 %"), HasSubstr("88"), HasSubstr("50 %")));
  EXPECT_FALSE(nlohmann::json::parse(to_json(RunReport{})).contains("machine"));
}

}  // namespace
}  // namespace lockstep::observe
