#include "observe/sinks/prometheus_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "observe/machine/figures.h"

namespace lockstep::observe {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

RecordPtr prometheus_record(int64_t step, std::vector<NamedMetric> metrics) {
  return std::make_shared<MetricsRecord>(
      MetricsRecord{.step = step, .metrics = std::move(metrics), .unix_seconds = 1700000000.5});
}

TEST(Prometheus, ThePageHasTheLastNumbersInBaseUnits) {
  PrometheusSink sink({.run_id = "a", .total_steps = 40, .tags = {{"layout", "dp=2"}, {"host", "a\"\\\nb"}}},
                      "127.0.0.1", 0);
  sink.open();
  EXPECT_EQ(sink.page(),
            "# HELP lockstep_run_info What runs; always 1.\n"
            "# TYPE lockstep_run_info gauge\n"
            "lockstep_run_info{layout=\"dp=2\",host=\"a\\\"\\\\\\nb\"} 1\n"
            "# HELP lockstep_steps_total Optimizer steps complete, when last logged.\n"
            "# TYPE lockstep_steps_total counter\n"
            "lockstep_steps_total 0\n"
            "# HELP lockstep_planned_steps Optimizer steps of the whole run.\n"
            "# TYPE lockstep_planned_steps gauge\n"
            "lockstep_planned_steps 40\n");
  const std::vector<RecordPtr> records{
      prometheus_record(1, {{"loss", 2.5}, {"skipped", 1}}),
      prometheus_record(
          2, {{"loss", std::nan("")}, {"step_ms", 250.0}, {"grad_norm", HUGE_VAL}, {"layout", "x"}}),
      prometheus_record(2, {{"eval_loss", 0.5}, {"eval_ms", 10.0}})};
  EXPECT_EQ(sink.write(records), 3u);
  EXPECT_THAT(sink.page(),
              AllOf(HasSubstr("\nlockstep_steps_total 2\n"),
                    HasSubstr("\nlockstep_last_record_timestamp_seconds 1700000000.5\n"),
                    HasSubstr("# TYPE lockstep_train_loss gauge\nlockstep_train_loss NaN\n"),
                    HasSubstr("\nlockstep_step_seconds 0.25\n"), HasSubstr("\nlockstep_gradient_norm +Inf\n"),
                    HasSubstr("\nlockstep_eval_loss 0.5\n"), HasSubstr("\nlockstep_eval_seconds 0.01\n"),
                    Not(HasSubstr("skipped"))));
}

/// Of two GPUs, a process and a host.
std::vector<RecordPtr> machine_records(double unix_seconds) {
  using Kind = MachineSubject::Kind;
  const auto record = [&](const MachineSubject& subject, std::vector<NamedMetric> metrics) {
    return std::make_shared<MetricsRecord>(MetricsRecord{
        .step = 3, .metrics = std::move(metrics), .unix_seconds = unix_seconds, .machine = subject});
  };
  const MachineSubject host{.host = "a", .slice = {}, .uuid = {}, .model = {}};
  MachineSubject process = host, hot = host, slice = host;
  process.kind = Kind::process;
  hot = {.kind = Kind::gpu, .host = "a", .rank = 1, .gpu = 1, .slice = {}, .uuid = "GPU-1", .model = "H100"};
  slice = {.kind = Kind::gpu, .host = "a", .rank = 0, .gpu = 0, .slice = 2, .uuid = "MIG-0", .model = "A100"};
  std::vector<NamedMetric> all;
  for (const auto& figure : machine_figures())
    if (figure.subject == Kind::gpu) all.emplace_back(figure.field, 1048576.0);
  return {record(host, {{"processor_share", 0.5}}), record(process, {{"processor_cores", 1.5}}),
          record(hot, std::move(all)), record(slice, {{"memory_used_bytes", 3145728.0}})};
}

TEST(Prometheus, MachinesHaveLabelsAndGpusTheNamesOfDcgmExporter) {
  PrometheusSink sink({.total_steps = 40, .machine_every_seconds = 1}, "127.0.0.1", 0);
  sink.open();
  sink.write(machine_records(1000));
  EXPECT_THAT(
      sink.page(),
      AllOf(HasSubstr("\nlockstep_host_processor_ratio{host=\"a\"} 0.5\n"),
            HasSubstr("\nlockstep_process_processor_cores{host=\"a\",rank=\"0\"} 1.5\n"),
            HasSubstr("# TYPE DCGM_FI_DEV_FB_USED gauge\n"
                      "DCGM_FI_DEV_FB_USED{gpu=\"0\",UUID=\"MIG-0\",device=\"nvidia0\",model_name=\"A100\","
                      "Hostname=\"a\",rank=\"0\",slice=\"2\"} 3\n"
                      "DCGM_FI_DEV_FB_USED{gpu=\"1\",UUID=\"GPU-1\",device=\"nvidia1\",model_name=\"H100\","
                      "Hostname=\"a\",rank=\"1\"} 1\n")));
  EXPECT_THAT(sink.page(), HasSubstr("\nlockstep_steps_total 0\n"));  // of steps, they say nothing
}

TEST(Prometheus, MachinesThatAreGoneAreNotShown) {
  PrometheusSink sink({.machine_every_seconds = 1}, "127.0.0.1", 0);
  sink.open();
  sink.write(machine_records(1000));
  sink.write(std::vector<RecordPtr>{machine_records(1060).front()});
  EXPECT_THAT(sink.page(), AllOf(HasSubstr("lockstep_host_processor_ratio"), Not(HasSubstr("DCGM"))));
}

TEST(Prometheus, PromtoolAcceptsFiguresOfGpus) {
  if (std::system("promtool --version > /dev/null 2>&1") != 0) GTEST_SKIP() << "no promtool";
  PrometheusSink sink({}, "127.0.0.1", 0);
  sink.open();
  sink.write(machine_records(1000));
  const test::TemporaryDirectory folder;
  test::write_file(folder / "page", sink.page());
  EXPECT_EQ(std::system(("promtool check metrics < " + (folder / "page")).c_str()), 0);
}

TEST(Prometheus, AResumedRunBeginsWithItsSteps) {
  PrometheusSink sink({.resume_step = 7}, "::1", 0);
  try {
    sink.open();
  } catch (const IoError&) {
    GTEST_SKIP() << "no IPv6 here";
  }
  EXPECT_THAT(sink.page(), HasSubstr("\nlockstep_steps_total 7\n"));
  EXPECT_GT(sink.port(), 0);
}

TEST(Prometheus, APortThatIsTakenIsNamed) {
  const ScrapeServer first("127.0.0.1", 0);
  PrometheusSink second({}, "127.0.0.1", first.port());
  EXPECT_THAT(message_of<IoError>([&] { second.open(); }),
              Mentions("port " + std::to_string(first.port()) + " ... 127.0.0.1"));
  EXPECT_THAT(message_of<ConfigError>([&] { ScrapeServer("localhost", 0); }), HasSubstr("IP address"));
}

}  // namespace
}  // namespace lockstep::observe
