#include "observe/sinks/record_line.h"

#include <gtest/gtest.h>

#include "data/test_files.h"
#include "observe/metrics_reader.h"
#include "observe/sinks/jsonl_sink.h"

namespace lockstep::observe {
namespace {

using Kind = MachineSubject::Kind;

MetricsRecord gpu_record() {
  const MachineSubject gpu{
      .kind = Kind::gpu, .host = "a", .rank = 3, .gpu = 1, .slice = 0, .uuid = "MIG-1", .model = "H100"};
  MetricsRecord record{.step = 7, .metrics = {}, .machine = gpu};
  record.metrics.push_back(machine_metric(Kind::gpu, "power_watts", 350));
  record.metrics.push_back(machine_metric(Kind::gpu, "memory_used_bytes", 1024));
  record.metrics.emplace_back("held_down_by", "sync boost");
  return record;
}

TEST(RecordLine, OfAMachineSaysWhomItIsAbout) {
  EXPECT_EQ(
      record_line(gpu_record()),
      "{\"step\":7,\"kind\":\"machine\",\"host\":\"a\",\"rank\":3,\"gpu\":1,\"slice\":0,\"uuid\":\"MIG-1\","
      "\"model\":\"H100\",\"power_watts\":350.0,\"memory_used_bytes\":1024,\"held_down_by\":\"sync "
      "boost\"}\n");
  MetricsRecord host{.step = 1,
                     .metrics = {{"processor_share", 0.5}},
                     .machine = MachineSubject{.host = "b", .slice = {}, .uuid = {}, .model = {}}};
  EXPECT_EQ(record_line(host), "{\"step\":1,\"kind\":\"machine\",\"host\":\"b\",\"processor_share\":0.5}\n");
}

TEST(RecordLine, ReadsBack) {
  const MetricsRecord record = gpu_record();
  const MetricsRecord read = record_of(parse_metrics_line(record_line(record), "here"));
  EXPECT_EQ(read.step, 7);
  EXPECT_EQ(read.machine, record.machine);
  EXPECT_EQ(read.metrics.size(), 3u);
  EXPECT_EQ(record_of(parse_metrics_line("{\"step\":2,\"loss\":1}", "here")).machine, std::nullopt);
}

TEST(RecordLine, ReadersOfARunSkipMachines) {
  const test::TemporaryDirectory folder;
  const std::string path = folder / "metrics.jsonl";
  test::write_file(path,
                   "{\"step\":1,\"loss\":1}\n" + record_line(gpu_record()) + "{\"step\":8,\"loss\":1}\n");
  EXPECT_EQ(read_metrics(path).size(), 2u);
  EXPECT_EQ(read_metrics(path, MetricsLines::all).size(), 3u);
  // Resuming drops those of later steps, too.
  JsonlSink sink(path, 6);
  sink.open();
  sink.close(RunEnd::finished, "");
  EXPECT_EQ(read_metrics(path, MetricsLines::all).size(), 1u);
}

}  // namespace
}  // namespace lockstep::observe
