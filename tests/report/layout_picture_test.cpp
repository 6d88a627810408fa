#include "report/layout_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/run_files.h"

namespace lockstep::report {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

size_t boxes(const std::string& svg) {
  size_t count = 0;
  for (size_t at = svg.find("<rect"); at != std::string::npos; at = svg.find("<rect", at + 1)) ++count;
  return count;
}

TEST(LayoutPicture, HasABoxForEachProcess) {
  const std::string svg = layout_picture(Json::parse(testing::kReportText));
  EXPECT_EQ(boxes(svg), 3u);
  for (const char* text :
       {">workers<", ">servers<", ">rank 2<", ">waits 30 %<", ">waits 50 %<", ">busy 25 %<", ">b<"})
    EXPECT_THAT(svg, HasSubstr(text));
}

TEST(LayoutPicture, HasARowForEachStage) {
  Json report{{"layout", "dp=2,pp=2"}, {"ranks", Json::array()}};
  for (int rank = 0; rank < 4; ++rank)
    report["ranks"].push_back(
        {{"rank", rank}, {"role", "worker"}, {"host", "<a>"}, {"stage", rank / 2}, {"replica", rank % 2}});
  const std::string svg = layout_picture(report);
  EXPECT_EQ(boxes(svg), 4u);
  EXPECT_THAT(svg, HasSubstr(">stage 0<"));
  EXPECT_THAT(svg, HasSubstr(">stage 1<"));
  EXPECT_THAT(svg, Not(HasSubstr("<a>"))) << "one host needs no name, and text is no markup";
}

TEST(LayoutPicture, IsLeftOutIfItCannotBeSeen) {
  EXPECT_EQ(layout_picture(Json()), "");
  EXPECT_EQ(layout_picture(Json{{"ranks", Json::array()}}), "");
  Json report{{"ranks", Json::array()}};
  for (int rank = 0; rank < 1000; ++rank) report["ranks"].push_back({{"rank", rank}, {"role", "worker"}});
  EXPECT_EQ(layout_picture(report), "");
}

}  // namespace
}  // namespace lockstep::report
