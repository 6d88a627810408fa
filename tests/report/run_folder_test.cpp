#include "report/run_folder.h"

#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "mentions.h"
#include "report/run_files.h"

namespace lockstep::report {
namespace {

using testing::RunFiles;

TEST(RunFolder, HoldsWhatFilesSay) {
  const RunFiles files;
  files.write("a", "metrics.jsonl", testing::kMetricsText);
  files.write("a", "report.json", testing::kReportText);
  const RunFolder run = read_run(files.path("a") + "/");
  EXPECT_EQ(run.name, "a");
  EXPECT_EQ(run.rows.size(), 3u);
  EXPECT_EQ(run.machines.size(), 2u);
  EXPECT_TRUE(run.has_ended());
  EXPECT_EQ(number_of(run.report, "eval_loss"), 1.5);
  EXPECT_EQ(number_of(run.report, "layout"), std::nullopt) << "no number";
  EXPECT_EQ(number_of(run.report, "nothing"), std::nullopt);
  EXPECT_EQ(run.explanation["step"], 2);
  EXPECT_TRUE(run.fields.empty());
}

TEST(RunFolder, MayBeOfARunThatGoesOn) {
  const RunFiles files;
  files.write("a", "metrics.jsonl", "{\"step\":1,\"loss\":2}\n{\"step\":2,\"lo");
  files.write("a", "explain.json", "{\"step\":1,\"goes_on\":true}");
  const RunFolder run = read_run(files.path("a"));
  EXPECT_FALSE(run.has_ended());
  EXPECT_EQ(run.rows.size(), 1u);
  EXPECT_EQ(run.explanation["goes_on"], true);
}

TEST(RunFolder, ConfigOfAnotherVersionIsShownAsText) {
  const RunFiles files;
  files.write("a", "metrics.jsonl", "{\"step\":1,\"loss\":2}\n");
  files.write("a", "config.effective.textproto", "model { of_tomorrow: true }");
  const RunFolder run = read_run(files.path("a"));
  EXPECT_EQ(run.config, "model { of_tomorrow: true }");
  EXPECT_TRUE(run.fields.empty());
  EXPECT_NE(run.config_problem, "");
}

TEST(RunFolder, SaysWhatIsMissingOrDamaged) {
  const RunFiles files;
  EXPECT_THAT([&] { read_run(files.path("none")); },
              ::testing::ThrowsMessage<ConfigError>(Mentions("none ... --out")));
  files.write("empty", "notes.txt", "");
  EXPECT_THAT([&] { read_run(files.path("empty")); },
              ::testing::ThrowsMessage<ConfigError>(Mentions("empty ... metrics.jsonl")));
  files.write("a", "metrics.jsonl", "");
  files.write("a", "report.json", "{");
  EXPECT_THAT([&] { read_run(files.path("a")); },
              ::testing::ThrowsMessage<DataError>(Mentions("report.json")));
}

TEST(RunFolder, RunsGetNamesThatTellThemApart) {
  std::vector<RunFolder> runs(3);
  runs[0].path = "x/a", runs[0].name = "a";
  runs[1].path = "y/a", runs[1].name = "a";
  runs[2].path = "b", runs[2].name = "b";
  name_apart(runs);
  EXPECT_EQ(runs[0].name, "x/a");
  EXPECT_EQ(runs[1].name, "y/a");
  runs[1].path = "x/a";
  name_apart(runs);
  EXPECT_NE(runs[0].name, runs[1].name);
}

}  // namespace
}  // namespace lockstep::report
