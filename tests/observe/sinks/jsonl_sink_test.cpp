#include "observe/sinks/jsonl_sink.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <bit>
#include <csignal>
#include <limits>

#include "base/text.h"
#include "data/test_files.h"
#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// An open file, to be written to line by line.
class OpenJsonl : public JsonlSink {
 public:
  explicit OpenJsonl(const std::string& path, std::optional<int64_t> resume_step = std::nullopt)
      : JsonlSink(path, resume_step) {
    open();
  }
  void write_line(int64_t step, std::vector<NamedMetric> metrics) {
    const std::vector<RecordPtr> records{
        std::make_shared<MetricsRecord>(MetricsRecord{.step = step, .metrics = std::move(metrics)})};
    EXPECT_EQ(write(records), 1u);
  }
};

class Metrics : public ::testing::Test {
 protected:
  std::string text() const { return read_text_file(path_); }
  TemporaryDirectory folder_;
  std::string path_ = folder_ / "metrics.jsonl";
};

TEST_F(Metrics, EachLineIsOneObjectThatIsThereAtOnce) {
  OpenJsonl sink(path_);
  sink.write_line(1, {{"loss", 2.5}, {"learning_rate", 0.1}, {"tokens", int64_t{4096}}});
  EXPECT_EQ(text(), "{\"step\":1,\"loss\":2.5,\"learning_rate\":0.1,\"tokens\":4096}\n");
  sink.write_line(2, {{"note", "a \"b\""}, {"loss", std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_EQ(text(),
            "{\"step\":1,\"loss\":2.5,\"learning_rate\":0.1,\"tokens\":4096}\n"
            "{\"step\":2,\"note\":\"a \\\"b\\\"\",\"loss\":\"nan\"}\n");
  sink.write_line(3, {});
  EXPECT_THAT(text(), ::testing::EndsWith("\n{\"step\":3}\n"));
}

TEST_F(Metrics, NumbersReadBackWithEqualBits) {
  const std::vector<double> values{0.1 + 0.2,
                                   1.0 / 3,
                                   -0.0,
                                   5e-324,
                                   1.7976931348623157e308,
                                   9007199254740993.0,
                                   123456789012345680.0,
                                   2.2250738585072011e-308,
                                   -HUGE_VAL,
                                   HUGE_VAL};
  OpenJsonl sink(path_);
  for (size_t i = 0; i < values.size(); ++i) sink.write_line(static_cast<int64_t>(i), {{"x", values[i]}});
  sink.close(RunEnd::finished, "");
  const auto rows = read_metrics(path_);
  ASSERT_EQ(rows.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(rows[i].number("x")), std::bit_cast<uint64_t>(values[i])) << values[i];
  }
}

TEST_F(Metrics, BeginsAnewWithoutAStepToResumeFrom) {
  write_file(path_, "{\"step\":1}\n");
  OpenJsonl sink(path_);
  sink.write_line(9, {});
  EXPECT_EQ(text(), "{\"step\":9}\n");
}

TEST_F(Metrics, ResumingKeepsLinesUpToTheStepByteForByte) {
  write_file(
      path_,
      "{\"step\":1, \"loss\":3.0}\n{\"step\":2}\n{\"step\":2,\"eval_loss\":1}\n{\"step\":3}\n{\"step\":4}\n");
  OpenJsonl sink(path_, 2);
  EXPECT_EQ(sink.dropped().later, 2);
  EXPECT_EQ(sink.dropped().damaged, 0);
  EXPECT_EQ(text(), "{\"step\":1, \"loss\":3.0}\n{\"step\":2}\n{\"step\":2,\"eval_loss\":1}\n");
  sink.write_line(3, {{"loss", 1.5}});
  EXPECT_EQ(
      text(),
      "{\"step\":1, \"loss\":3.0}\n{\"step\":2}\n{\"step\":2,\"eval_loss\":1}\n{\"step\":3,\"loss\":1.5}\n");
  EXPECT_FALSE(std::filesystem::exists(path_ + ".tmp"));
}

TEST_F(Metrics, ResumingDropsATornLastLine) {
  write_file(path_, "{\"step\":1}\n{\"step\":2,\"lo");
  OpenJsonl sink(path_, 5);
  EXPECT_EQ(sink.dropped().damaged, 1);
  sink.write_line(6, {});
  EXPECT_EQ(text(), "{\"step\":1}\n{\"step\":6}\n");
}

TEST_F(Metrics, ResumingDropsDamagedLinesInTheMiddle) {
  write_file(path_, std::string("{\"step\":1}\n") + std::string(3, '\0') + "\n{\"step\":2}\n");
  OpenJsonl sink(path_, 5);
  EXPECT_EQ(sink.dropped().damaged, 1);
  EXPECT_EQ(text(), "{\"step\":1}\n{\"step\":2}\n");
}

TEST_F(Metrics, ResumingReplacesTheFileOnlyWhereSomethingIsDropped) {
  write_file(path_, "{\"step\":1}\n{\"step\":2}\n");
  std::filesystem::create_hard_link(path_, folder_ / "old");
  { OpenJsonl sink(path_, 2); }
  EXPECT_EQ(std::filesystem::hard_link_count(path_), 2u);
  { OpenJsonl sink(path_, 1); }
  EXPECT_EQ(text(), "{\"step\":1}\n");
  EXPECT_EQ(read_text_file(folder_ / "old"), "{\"step\":1}\n{\"step\":2}\n")
      << "changed in place: a crash would tear it";
}

TEST_F(Metrics, ResumingWithoutAFileBeginsOne) {
  OpenJsonl sink(path_, 7);
  sink.write_line(8, {});
  EXPECT_EQ(text(), "{\"step\":8}\n");
}

TEST_F(Metrics, AFullDiskIsNamed) {
  OpenJsonl sink("/dev/full");
  EXPECT_THAT(message_of<IoError>([&] {
                sink.write_line(1, {{"loss", 1.0}});
              }),
              AllOf(HasSubstr("/dev/full"), HasSubstr("No space left")));
}

TEST_F(Metrics, NumbersThatAreNoIntegersAlwaysHaveAPoint) {
  OpenJsonl sink(path_);
  sink.write_line(1, {{"a", 0.0}, {"b", 32768.0}, {"c", -0.0}, {"d", 1e30}, {"e", 0.5}, {"f", 1}});
  EXPECT_EQ(text(), "{\"step\":1,\"a\":0.0,\"b\":32768.0,\"c\":-0.0,\"d\":1e+30,\"e\":0.5,\"f\":1}\n");
}

TEST_F(Metrics, AFailedLineLeavesNoPartBehind) {
  OpenJsonl sink(path_);
  sink.write_line(1, {});  // 11 bytes
  // The system writes up to the limit, then refuses: a line torn in the middle.
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{15, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const auto message = message_of<IoError>([&] { sink.write_line(2, {{"loss", 0.125}}); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(message, HasSubstr(path_));
  EXPECT_THAT(message, HasSubstr("ulimit -f"));
  EXPECT_EQ(text(), "{\"step\":1}\n");
  // The same line is written again.
  sink.write_line(2, {{"loss", 0.125}});
  EXPECT_EQ(text(), "{\"step\":1}\n{\"step\":2,\"loss\":0.125}\n");
}

TEST_F(Metrics, AFolderThatIsNotThereIsNamed) {
  EXPECT_THAT(message_of<IoError>([&] { OpenJsonl sink(folder_ / "none/metrics.jsonl"); }),
              AllOf(HasSubstr("none/metrics.jsonl"), HasSubstr("No such file")));
  EXPECT_THAT(message_of<IoError>([&] { OpenJsonl sink(folder_ / "none/metrics.jsonl", 3); }),
              HasSubstr("none/metrics.jsonl"));
}

TEST_F(Metrics, ANameTwiceIsAMistake) {
  OpenJsonl sink(path_);
  EXPECT_THAT(message_of<InternalError>([&] {
                sink.write_line(1, {{"loss", 1}, {"loss", 2}});
              }),
              HasSubstr("named loss"));
  EXPECT_THAT(message_of<InternalError>([&] { sink.write_line(1, {{"step", 1}}); }), HasSubstr("named step"));
  EXPECT_EQ(text(), "");
  sink.close(RunEnd::finished, "");
  EXPECT_THROW(sink.write_line(2, {}), InternalError);
}

}  // namespace
}  // namespace lockstep::observe
