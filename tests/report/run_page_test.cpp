#include "report/run_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "report/run_files.h"

namespace lockstep::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunFiles;

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// What is opened is closed.
void expect_balanced(const std::string& page) {
  for (const char* tag :
       {"html", "body", "div", "table", "thead", "tbody", "tr", "td", "th", "svg", "details", "p", "pre"})
    EXPECT_EQ(
        occurrences(page, std::string("<") + tag + ">") + occurrences(page, std::string("<") + tag + " "),
        occurrences(page, std::string("</") + tag + ">"))
        << tag;
}

RunFolder example(const std::string& name) {
  const RunFiles files;
  files.write(name, "metrics.jsonl", testing::kMetricsText);
  files.write(name, "report.json", testing::kReportText);
  return read_run(files.path(name));
}

TEST(RunPage, ShowsAllThatIsKnown) {
  const std::string page = run_page({example("one")});
  expect_balanced(page);
  for (const char* heading : {"Learning", "Results", "Speed", "Where the time went", "Machines", "Layout"})
    EXPECT_EQ(occurrences(page, std::string("<h2>") + heading + "</h2>"), 1u) << heading;
  for (const char* text : {"75.00 %", "0123456789abcdef", "1.00 MiB", "500", "GPU 0 of a", "host a", "linear",
                           "processor_share"})
    EXPECT_THAT(page, HasSubstr(text));
  EXPECT_THAT(page, Not(HasSubstr("<b>"))) << "text is no markup";
  EXPECT_THAT(page, Not(HasSubstr("http-equiv")));
  EXPECT_THAT(page, Not(HasSubstr("<script")));
}

TEST(RunPage, LaysRunsOverEachOtherAndSaysWhatDiffers) {
  std::vector<RunFolder> runs{example("one"), example("two")};
  runs[0].fields = {{"trainer.seed", "1"}, {"trainer.steps", "2"}};
  runs[1].fields = {{"trainer.seed", "7"}, {"trainer.steps", "2"}};
  const std::string page = run_page(runs);
  expect_balanced(page);
  EXPECT_THAT(page, HasSubstr("trainer.seed"));
  EXPECT_THAT(page, Not(HasSubstr("trainer.steps")));
  EXPECT_THAT(page, HasSubstr("one, GPU 0 of a"));
  runs[1].fields = runs[0].fields;
  EXPECT_THAT(run_page(runs), HasSubstr("The configs are the same."));
}

TEST(RunPage, ShowsWhatThereIsOfARunThatGoesOn) {
  const RunFiles files;
  files.write("a", "metrics.jsonl", "{\"step\":7,\"loss\":2}\n");
  const std::string page = run_page({read_run(files.path("a"))});
  expect_balanced(page);
  EXPECT_THAT(page, HasSubstr("<h2>Learning</h2>"));
  EXPECT_THAT(page, Not(HasSubstr("<h2>Results</h2>")));
  EXPECT_THAT(page, HasSubstr("step 7"));
}

TEST(RunPage, IsWrittenBesideTheRun) {
  const RunFiles files;
  files.write("a", "metrics.jsonl", testing::kMetricsText);
  write_run_page(files.path("a"));
  EXPECT_TRUE(std::filesystem::exists(files.path("a") + "/report.html"));
}

}  // namespace
}  // namespace lockstep::report
