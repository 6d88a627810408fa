#include "observe/sinks/tensorboard_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/hash.h"
#include "base/text.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "observe/sinks/event_file.h"
#include "observe/sinks/metric_names.h"

namespace lockstep::observe {
namespace {

namespace fs = std::filesystem;
using test::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// A reader of our own, so that this is tested where no TensorBoard is.

template <class Number>
Number number_at(std::string_view bytes, size_t offset) {
  Number value{};
  std::memcpy(&value, bytes.substr(offset, sizeof(value)).data(), sizeof(value));
  return value;
}

/// Fields of a message by number: texts and numbers' bytes.
using Fields = std::multimap<int, std::string>;

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

Fields fields_of(std::string_view bytes) {
  Fields fields;
  while (!bytes.empty()) {
    const uint64_t key = take_varint(bytes);
    size_t size = key % 8 == 1 ? 8 : 4;
    if (key % 8 == 0) {
      fields.emplace(key / 8, std::to_string(take_varint(bytes)));
      continue;
    }
    if (key % 8 == 2) size = take_varint(bytes);
    fields.emplace(key / 8, bytes.substr(0, size));
    bytes.remove_prefix(size);
  }
  return fields;
}

std::string one(const Fields& fields, int number) {
  const auto found = fields.find(number);
  return found == fields.end() ? "" : found->second;
}

uint32_t masked(std::string_view data) {
  const uint32_t sum = crc32c(data.data(), data.size());
  return std::rotr(sum, 15) + 0xa282ead8u;
}

std::vector<Fields> events_of(const std::string& path) {
  const std::string text = read_text_file(path);
  std::vector<Fields> events;
  for (std::string_view rest = text; !rest.empty();) {
    const auto size = static_cast<size_t>(number_at<uint64_t>(rest, 0));
    EXPECT_EQ(number_at<uint32_t>(rest, 8), masked(rest.substr(0, 8)));
    EXPECT_EQ(number_at<uint32_t>(rest, 12 + size), masked(rest.substr(12, size)));
    events.push_back(fields_of(rest.substr(12, size)));
    rest.remove_prefix(size + 16);
  }
  return events;
}

/// "train/loss" -> values by step
std::map<std::string, std::vector<std::pair<std::string, float>>> scalars_of(const std::string& path) {
  std::map<std::string, std::vector<std::pair<std::string, float>>> scalars;
  for (const auto& event : events_of(path)) {
    const Fields summary = fields_of(one(event, 5));
    for (auto [value, end] = summary.equal_range(1); value != end; ++value) {
      const Fields fields = fields_of(value->second);
      if (fields.contains(2))
        scalars[one(fields, 1)].emplace_back(one(event, 2), number_at<float>(one(fields, 2), 0));
    }
  }
  return scalars;
}

class Tensorboard : public ::testing::Test {
 protected:
  RunFacts facts(std::optional<int64_t> resume_step = {}, const std::string& run_id = "abc") const {
    return {.directory = folder_.path(),
            .run_id = run_id,
            .resume_step = resume_step,
            .total_steps = 100,
            .config = "trainer {\n}\n",
            .fields = {{"trainer.seed", "7"}, {"optimizer.kind", "adam"}, {"model.layer[0].name", "\"a\""}},
            .tags = {{"layout", "dp=2"}}};
  }
  static RecordPtr record(int64_t step, std::vector<NamedMetric> metrics) {
    return std::make_shared<MetricsRecord>(
        MetricsRecord{.step = step, .metrics = std::move(metrics), .unix_seconds = 1000.5});
  }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / "tensorboard"))
      names.push_back(entry.path().string());
    std::ranges::sort(names);
    return names;
  }
  test::TemporaryDirectory folder_;
};

TEST_F(Tensorboard, GetsScalarsUnderNamesThatGroup) {
  TensorboardSink sink(facts());
  sink.open();
  const std::vector<RecordPtr> records{record(10, {{"loss", 0.5}, {"step_ms", 2.0}, {"layout", "dp=2"}}),
                                       record(20, {{"loss", std::nan("")}, {"eval_accuracy", 0.25}})};
  EXPECT_EQ(sink.write(records), 2u);
  sink.close(RunEnd::finished, "");
  ASSERT_EQ(files().size(), 1u);
  EXPECT_THAT(fs::path(files()[0]).filename().string(),
              AllOf(testing::StartsWith("events.out.tfevents."), testing::EndsWith(".abc")));
  const auto scalars = scalars_of(files()[0]);
  EXPECT_THAT(scalars.at("time/step_ms"), ElementsAre(Pair("10", 2.0f)));
  EXPECT_THAT(scalars.at("eval/accuracy"), ElementsAre(Pair("20", 0.25f)));
  ASSERT_EQ(scalars.at("train/loss").size(), 2u);
  EXPECT_EQ(scalars.at("train/loss")[0], std::pair(std::string("10"), 0.5f));
  EXPECT_TRUE(std::isnan(scalars.at("train/loss")[1].second));
  EXPECT_EQ(scalars.size(), 3u) << "texts are no scalars";
}

TEST_F(Tensorboard, HistogramsAreTensorsWithARowForEachBucket) {
  TensorboardSink sink(facts());
  sink.open();
  MetricsRecord record{.step = 3, .metrics = {}, .unix_seconds = 1000.5};
  record.histograms = {{"parameters/fc.weight", {{-1, 0.5, 7}, {0.5, 2, 1}}}};
  sink.write(std::vector<RecordPtr>{std::make_shared<MetricsRecord>(record)});
  sink.close(RunEnd::finished, "");
  const auto events = events_of(files().at(0));
  const auto found = std::ranges::find_if(events, [](const Fields& event) {
    return one(fields_of(one(fields_of(one(event, 5)), 1)), 1) == "parameters/fc.weight";
  });
  ASSERT_NE(found, events.end());
  EXPECT_EQ(one(*found, 2), "3");
  const Fields value = fields_of(one(fields_of(one(*found, 5)), 1));
  EXPECT_EQ(one(fields_of(one(fields_of(one(value, 9)), 1)), 1), "histograms");
  const Fields tensor = fields_of(one(value, 8));
  EXPECT_EQ(one(tensor, 1), "2");  // doubles
  const std::string contents = one(tensor, 4);
  ASSERT_EQ(contents.size(), 6 * sizeof(double));
  EXPECT_EQ(number_at<double>(contents, 0), -1);
  EXPECT_EQ(number_at<double>(contents, 16), 7);
  EXPECT_EQ(number_at<double>(contents, 32), 2);
}

TEST_F(Tensorboard, MachinesAreGroupsWithOneNumberForAStep) {
  RunFacts facts = this->facts();
  facts.several_hosts = true;
  TensorboardSink sink(facts);
  sink.open();
  const auto machine = [](int64_t step, double watts) {
    return std::make_shared<MetricsRecord>(MetricsRecord{
        .step = step,
        .metrics = {{"power_watts", watts}, {"held_down_by", "sync boost"}},
        .unix_seconds = 1000.5,
        .machine = MachineSubject{
            .kind = MachineSubject::Kind::gpu, .host = "b", .slice = {}, .uuid = "GPU-1", .model = "H100"}});
  };
  const std::vector<RecordPtr> records{machine(1, 100), machine(1, 200), record(2, {{"loss", 0.5}}),
                                       machine(2, 300)};
  EXPECT_EQ(sink.write(records), 4u);
  sink.close(RunEnd::finished, "");
  EXPECT_THAT(scalars_of(files().at(0))["b.gpu0/power_watts"], ElementsAre(Pair("1", 100), Pair("2", 300)));
}

TEST_F(Tensorboard, BeginsWithVersionSessionConfigAndHyperparameters) {
  TensorboardSink sink(facts());
  sink.open();
  sink.close(RunEnd::finished, "");
  const auto events = events_of(files()[0]);
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(one(events[0], 3), "brain.Event:2");
  EXPECT_EQ(one(events[1], 7), "\x08\x01");
  EXPECT_THAT(one(events[2], 5), AllOf(HasSubstr("run/config"), HasSubstr("    trainer {\n    }\n")));
  EXPECT_THAT(one(events[3], 5), AllOf(HasSubstr("run/facts"), HasSubstr("| layout | dp=2 |")));
  EXPECT_THAT(one(events[4], 5), AllOf(HasSubstr("session_start_info"), HasSubstr("trainer.seed"),
                                       HasSubstr("optimizer.kind"), testing::Not(HasSubstr("model"))));
  EXPECT_THAT(one(events[5], 5), HasSubstr("session_end_info"));
}

TEST_F(Tensorboard, AResumedRunBeginsAnotherFileThatRepeatsWhatCountsNoMore) {
  {
    TensorboardSink sink(facts());
    sink.open();
    std::vector<RecordPtr> records;
    for (int64_t step = 1; step <= 100; ++step) records.push_back(record(step, {{"loss", 1.0}}));
    sink.write(records);
    sink.close(RunEnd::killed, "");
  }
  test::write_file(folder_ / "metrics.jsonl",
                   std::string("{\"step\":59,\"loss\":1.0}\n{\"step\":60,\"loss\":1.0}\n"
                               "{\"step\":60,\"eval_loss\":3.0}\n"));
  TensorboardSink sink(facts(60));
  sink.open();
  sink.close(RunEnd::killed, "");
  ASSERT_EQ(files().size(), 2u);
  EXPECT_EQ(events_of(files()[0]).size(), 105u) << "a run that was stopped has not ended";
  const auto events = events_of(files()[1]);
  EXPECT_EQ(one(events[1], 7), "\x08\x01");
  EXPECT_EQ(one(events[1], 2), "60");
  EXPECT_EQ(one(events[2], 2), "59") << "what is said of the run is not forgotten with the step";
  const auto scalars = scalars_of(files()[1]);
  EXPECT_THAT(scalars.at("train/loss"), ElementsAre(Pair("60", 1.0f)));
  EXPECT_THAT(scalars.at("eval/loss"), ElementsAre(Pair("60", 3.0f)));
  EXPECT_EQ(last_event_step(files()), 60);
}

TEST_F(Tensorboard, AttemptsThatFailLeaveNoFiles) {
  TensorboardSink sink(facts());
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{15, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  for (int attempt = 0; attempt < 3; ++attempt) EXPECT_THROW(sink.open(), IoError);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(files().empty());
  sink.open();
  sink.close(RunEnd::finished, "");
  ASSERT_EQ(files().size(), 1u);
  EXPECT_EQ(events_of(files()[0]).size(), 6u);
}

TEST_F(Tensorboard, WhatACrashTookFromAFileIsWrittenByTheNextRun) {
  {
    TensorboardSink sink(facts());
    sink.open();
    sink.write(std::vector<RecordPtr>{record(1, {{"loss", 1.0}}), record(2, {{"loss", 2.0}})});
  }
  // Torn within the second record.
  fs::resize_file(files()[0], fs::file_size(files()[0]) - 5);
  EXPECT_EQ(last_event_step(files()), 1);
  std::string lines;
  for (int step = 1; step <= 4; ++step)
    lines += "{\"step\":" + std::to_string(step) + ",\"loss\":" + std::to_string(step) + ".0}\n";
  test::write_file(folder_ / "metrics.jsonl", lines);
  TensorboardSink sink(facts(4));
  sink.open();
  EXPECT_THAT(scalars_of(files()[1]).at("train/loss"),
              ElementsAre(Pair("1", 1.0f), Pair("2", 2.0f), Pair("3", 3.0f), Pair("4", 4.0f)));
  EXPECT_EQ(one(events_of(files()[1])[1], 2), "1");
}

TEST_F(Tensorboard, DamagedFilesOfARunDoNotStopIt) {
  fs::create_directory(folder_ / "tensorboard");
  for (const std::string& bytes :
       {std::string(), std::string("x"), std::string(40, '\xff'), std::string(40, '\0')}) {
    test::write_file(folder_ / "tensorboard/events.out.tfevents.1700000000.h.abc", bytes);
    EXPECT_EQ(last_event_step(files()), 0);
  }
  TensorboardSink(facts(3)).open();
  EXPECT_EQ(files().size(), 2u);
}

TEST_F(Tensorboard, FilesOfAnotherRunAreRefusedByName) {
  TensorboardSink(facts({}, "other")).open();
  EXPECT_THAT(message_of<ConfigError>([&] { TensorboardSink(facts(5)).open(); }),
              AllOf(HasSubstr("/tensorboard: events.out.tfevents."), Mentions(".other ... another run"),
                    HasSubstr("metrics.tensorboard: false")));
}

TEST_F(Tensorboard, AFolderThatCannotBeMadeIsNamed) {
  test::write_file(folder_ / "tensorboard", std::string("a file"));
  EXPECT_THAT(message_of<IoError>([&] { TensorboardSink(facts()).open(); }), HasSubstr("/tensorboard"));
}

TEST(MetricNames, NoTwoAreAlike) {
  for (const auto& a : metric_names())
    for (const auto& b : metric_names()) {
      if (&a == &b) continue;
      EXPECT_NE(a.field, b.field);
      EXPECT_NE(a.grouped, b.grouped);
      EXPECT_NE(a.prometheus, b.prometheus);
    }
  EXPECT_EQ(grouped_name("eval_loss"), "eval/loss");
  EXPECT_EQ(grouped_name("something_new"), "train/something_new");
}

}  // namespace
}  // namespace lockstep::observe
