#include "observe/metrics_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"

namespace lockstep::observe {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using test::write_file;
using ::testing::AllOf;
using ::testing::HasSubstr;

class MetricsReader : public ::testing::Test {
 protected:
  std::vector<MetricsRow> rows_of(const std::string& text) {
    write_file(path_, text);
    return read_metrics(path_);
  }
  std::string refusal(const std::string& text) {
    write_file(path_, text);
    return message_of<DataError>([&] { read_metrics(path_); });
  }
  TemporaryDirectory folder_;
  std::string path_ = folder_ / "metrics.jsonl";
};

TEST_F(MetricsReader, ReadsNumbersAndTextsInFileOrder) {
  const auto rows = rows_of("{\"step\":7,\"loss\":0.30000000000000004}\n{\"step\":3,\"note\":\"resumed\"}\n");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].step(), 7);
  EXPECT_EQ(rows[0].number("loss"), 0.1 + 0.2);
  EXPECT_FALSE(rows[0].has("note"));
  EXPECT_EQ(rows[1].step(), 3);
  EXPECT_EQ(std::get<std::string>(rows[1].values().at("note")), "resumed");
}

TEST_F(MetricsReader, ReadsWhatIsNotFiniteAsNumbers) {
  const auto rows = rows_of("{\"step\":1,\"a\":\"nan\",\"b\":\"inf\",\"c\":\"-inf\",\"d\":-0.0}\n");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_TRUE(std::isnan(rows[0].number("a")));
  EXPECT_EQ(rows[0].number("b"), HUGE_VAL);
  EXPECT_EQ(rows[0].number("c"), -HUGE_VAL);
  EXPECT_TRUE(std::signbit(rows[0].number("d")));
}

TEST_F(MetricsReader, LeavesOutALineThatIsStillBeingWritten) {
  EXPECT_EQ(rows_of("{\"step\":1}\n{\"step\":2").size(), 1u);
  EXPECT_EQ(rows_of("{\"step\":1}\n{\"step\":2}").size(), 1u);
  EXPECT_EQ(rows_of("").size(), 0u);
}

TEST_F(MetricsReader, RefusesDamagedLinesNamingThePlace) {
  EXPECT_THAT(refusal("{\"step\":1}\n{\"step\":2,\"lo{\"step\":3}\n"),
              Mentions("metrics.jsonl:2: ... JSON object"));
  EXPECT_THAT(refusal("[1]\n"), Mentions("metrics.jsonl:1: ... JSON object"));
  EXPECT_THAT(refusal("{\"loss\":1}\n"), HasSubstr("expected \"step\""));
  EXPECT_THAT(refusal("{\"step\":1.5}\n"), Mentions("\"step\" ... 1.5"));
  EXPECT_THAT(refusal("{\"step\":-1}\n"), HasSubstr("found -1"));
  EXPECT_THAT(refusal("{\"step\":1,\"x\":[2]}\n"), HasSubstr("a number or a text as \"x\", found [2]"));
}

TEST_F(MetricsReader, NamesWhatIsMissing) {
  const auto rows = rows_of("{\"step\":1,\"loss\":2,\"note\":\"x\"}\n");
  EXPECT_THAT(message_of<DataError>([&] { rows[0].number("losss"); }),
              Mentions("metrics.jsonl:1: ... \"losss\" ... 'loss'"));
  EXPECT_THAT(message_of<DataError>([&] { rows[0].number("note"); }),
              HasSubstr("expected a number as \"note\", found \"x\""));
}

TEST_F(MetricsReader, NamesAFileThatIsNotThere) {
  EXPECT_THAT(message_of<IoError>([&] { read_metrics(folder_ / "none.jsonl"); }), HasSubstr("none.jsonl"));
}

}  // namespace
}  // namespace lockstep::observe
