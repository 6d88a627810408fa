#include "observe/machine/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>

#include "data/test_files.h"
#include "observe/advice.h"
#include "observe/machine/control_group.h"
#include "observe/machine/figures.h"
#include "observe/machine/report.h"
#include "observe/run_report.h"

namespace lockstep::observe {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::Pair;
using Figures = std::map<std::string, double>;

/// A machine whose kernel says what the test wants.
class Sampling : public ::testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    const std::string path = folder_ / file;
    fs::create_directories(fs::path(path).parent_path());
    test::write_file(path, text);
  }
  void write_times(int busy, int idle) {
    write("proc/stat", "cpu " + std::to_string(busy * ticks_) + " 0 0 " + std::to_string(idle * ticks_) +
                           " 0 0 0 0 0 0\ncpu0 0\ncpu1 0\ncpu2 0\ncpu3 0\n");
  }
  void write_process(int user, int read_bytes) {
    write("proc/self/stat",
          "1 (lockstep) R 0 0 0 0 0 0 0 0 0 0 " + std::to_string(user * ticks_) + " 0 0 0 20 0 1");
    write("proc/self/io", "read_bytes: " + std::to_string(read_bytes) + "\nwrite_bytes: 0\n");
  }
  HostSampler sampler() const { return HostSampler({.proc = folder_ / "proc", .sys = folder_ / "sys"}); }
  static Figures by_name(const std::vector<std::pair<std::string, double>>& figures) {
    return {figures.begin(), figures.end()};
  }

  const long ticks_ = ::sysconf(_SC_CLK_TCK);
  test::TemporaryDirectory folder_;
};

TEST_F(Sampling, SharesAndRatesAreOfTheTimeBetweenSamples) {
  write_times(10, 90);
  write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n");
  write("proc/pressure/memory", "some avg10=0 total=1000000\nfull avg10=0 total=0\n");
  write("proc/self/net/dev", "eth0: 100 0 0 0 0 0 0 0 200 0\nveth1: 900 0 0 0 0 0 0 0 900 0\n");
  fs::create_directories(folder_ / "sys/class/net/eth0/device");
  fs::create_directories(folder_ / "sys/block/sda/device");
  write("proc/diskstats", "8 0 sda 0 0 10 0 0 0 20 0\n");
  HostSampler sampler = this->sampler();
  const Figures first = by_name(sampler.host(100));
  EXPECT_EQ(first.count("processor_share"), 0u);
  EXPECT_EQ(first.at("memory_used_bytes"), 600 * 1024);

  write_times(16, 92);
  write("proc/pressure/memory", "some avg10=0 total=1500000\nfull avg10=0 total=200000\n");
  write("proc/self/net/dev", "eth0: 1100 0 0 0 0 0 0 0 4200 0\nveth1: 99900 0 0 0 0 0 0 0 99900 0\n");
  write("proc/diskstats", "8 0 sda 0 0 14 0 0 0 28 0\n");
  const Figures now = by_name(sampler.host(102));
  EXPECT_EQ(now.at("processor_share"), 0.75);
  EXPECT_EQ(now.at("processor_cores"), 4);
  EXPECT_EQ(now.at("pressure_memory_some_share"), 0.25);
  EXPECT_EQ(now.at("pressure_memory_full_share"), 0.1);
  EXPECT_EQ(now.at("network_received_bytes_per_second"), 500);
  EXPECT_EQ(now.at("network_sent_bytes_per_second"), 2000);
  EXPECT_EQ(now.at("disk_read_bytes_per_second"), 1024);
  EXPECT_EQ(now.at("disk_written_bytes_per_second"), 2048);
  // This kernel does not say what waits for disks.
  EXPECT_EQ(now.count("pressure_disk_some_share"), 0u);
}

/// Rules that apply to a run that computes all the time, on a host with these figures.
std::vector<std::string> rules_on(const std::vector<std::pair<std::string, double>>& figures) {
  RunReport report;
  report.steps = 10;
  report.explanation.emplace();
  RankExplanation rank{.wall_ms = 1000};
  nth(rank.parts_ms, static_cast<int>(TimePart::compute)) = 1000;
  report.explanation->ranks = {rank};
  MachineSummary summary;
  summary.add(
      {.subject = {.kind = MachineSubject::Kind::host, .host = "a", .slice = {}, .uuid = {}, .model = {}},
       .figures = figures,
       .seconds = 2});
  report.machines = summary.reports();
  std::vector<std::string> names;
  for (const Advice& one : advise(report, {})) names.push_back(one.rule);
  return names;
}

TEST_F(Sampling, AdviceNamesAHostThatSwaps) {
  const auto write_swapped = [&](int pages) {
    write("proc/vmstat", "pswpin 0\npswpout " + std::to_string(pages) + "\n");
  };
  write_swapped(0);
  HostSampler sampler = this->sampler();
  sampler.host(10);
  write_swapped(10);
  EXPECT_THAT(rules_on(sampler.host(12)), testing::ElementsAre()) << "a few pages";
  write_swapped(10'000);
  EXPECT_THAT(rules_on(sampler.host(14)), testing::ElementsAre("swap"));
  write("proc/pressure/memory", "some avg10=0 total=0\nfull avg10=0 total=0\n");
  sampler.host(16);
  write("proc/pressure/memory", "some avg10=0 total=1000000\nfull avg10=0 total=0\n");
  EXPECT_THAT(rules_on(sampler.host(18)), testing::ElementsAre("swap")) << "it waits for memory";
}

TEST_F(Sampling, AProcessHasCoresMemoryAndDisk) {
  write_process(1, 0);
  write("proc/self/status", "VmRSS:\t100 kB\nRssAnon:\t40 kB\n");
  HostSampler sampler = this->sampler();
  sampler.process(10);
  write_process(4, 4000);
  const Figures now = by_name(sampler.process(12));
  EXPECT_EQ(now.at("processor_cores"), 1.5);
  EXPECT_EQ(now.at("memory_resident_bytes"), 100 * 1024);
  EXPECT_EQ(now.at("memory_private_bytes"), 40 * 1024);
  EXPECT_EQ(now.at("disk_read_bytes_per_second"), 2000);
}

TEST_F(Sampling, AContainersLimitsCountInsteadOfItsHosts) {
  write_times(0, 0);
  write("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 900 kB\n");
  write("proc/self/cgroup", "0::/pod\n");
  const std::string group = "sys/fs/cgroup/pod/";
  write(group + "cpu.max", "200000 100000\n");
  write(group + "cpu.stat", "usage_usec 1000000\nuser_usec 7\n");
  write(group + "memory.max", "512000\n");
  write(group + "memory.current", "300000\n");
  write(group + "memory.stat", "anon 1\ninactive_file 100000\n");
  HostSampler sampler = this->sampler();
  sampler.host(10);
  write_times(10, 0);
  write(group + "cpu.stat", "usage_usec 4000000\nuser_usec 7\n");
  const Figures now = by_name(sampler.host(12));
  EXPECT_EQ(now.at("processor_share"), 0.75);  // 3 s of the 2 cores' 4
  EXPECT_EQ(now.at("processor_cores"), 2);
  EXPECT_EQ(now.at("memory_size_bytes"), 512000);
  EXPECT_EQ(now.at("memory_used_bytes"), 200000);
  // Wider limits than the host's are none.
  write(group + "cpu.max", "900000 100000\n");
  write(group + "memory.max", "99999999\n");
  const Figures wide = by_name(sampler.host(14));
  EXPECT_EQ(wide.at("processor_cores"), 4);
  EXPECT_EQ(wide.at("memory_size_bytes"), 1000 * 1024);
}

TEST_F(Sampling, TheTightestGroupIsTheLimit) {
  write("membership", "1:cpu:/x\n0::/a/b\n");
  write("groups/a/memory.max", "1000\n");
  write("groups/a/memory.current", "500\n");
  write("groups/a/b/memory.max", "max\n");
  write("groups/a/b/cpu.max", "max 100000\n");
  const GroupLimits limits = group_limits(folder_ / "membership", folder_ / "groups");
  EXPECT_EQ(limits.memory_bytes, 1000);
  EXPECT_EQ(limits.memory_used_bytes, 500);
  EXPECT_FALSE(limits.cores);
}

TEST_F(Sampling, WithoutThoseFilesThereIsNothing) {
  HostSampler sampler = this->sampler();
  sampler.host(1);
  EXPECT_TRUE(sampler.host(2).empty());
  EXPECT_TRUE(sampler.process(2).empty());
}

TEST(Sampler, ThisMachineHasFigures) {
  HostSampler sampler;
  sampler.host(1);
  for (const auto& [name, value] : sampler.host(2))
    EXPECT_NE(find_machine_figure(MachineSubject::Kind::host, name), nullptr) << name;
  sampler.process(1);
  const auto figures = sampler.process(2);
  EXPECT_THAT(figures, Contains(Pair("processor_cores", ::testing::Ge(0))));
  for (const auto& [name, value] : figures)
    EXPECT_NE(find_machine_figure(MachineSubject::Kind::process, name), nullptr) << name;
}

}  // namespace
}  // namespace lockstep::observe
