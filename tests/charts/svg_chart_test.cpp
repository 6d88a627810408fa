#include "charts/svg_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::charts {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(SvgChart, TicksAreRoundAndReachTheMost) {
  EXPECT_THAT(axis_ticks(10, 5), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(axis_ticks(11, 5), ElementsAre(0, 5, 10, 15));
  EXPECT_THAT(axis_ticks(1, 6), ElementsAre(0, 0.2, 0.4, testing::DoubleEq(0.6), 0.8, 1));
  for (const double most : {0.003, 0.7, 1.0, 9.99, 1234.5, 3.2e7})
    for (const int count : {3, 5, 8}) {
      const auto ticks = axis_ticks(most, count);
      EXPECT_LE(ticks.size(), static_cast<size_t>(count) + 1) << most;
      EXPECT_GE(ticks.back(), most * (1 - 1e-9)) << most;
    }
}

TEST(SvgChart, NumbersOfAxesAreShort) {
  EXPECT_EQ(tick_text(0), "0");
  EXPECT_EQ(tick_text(2.5), "2.5");
  EXPECT_EQ(tick_text(999), "999");
  EXPECT_EQ(tick_text(1500), "1,500");
  EXPECT_EQ(tick_text(40000), "40,000");
  EXPECT_EQ(tick_text(2.5e6), "2.5M");
}

TEST(SvgChart, TextIsNoMarkup) {
  EXPECT_EQ(html_text("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
  EXPECT_THAT(line_chart("x", "y", {1}, {{"<b>", {{1, 1}}}}), Not(HasSubstr("<b>")));
  EXPECT_THAT(stacked_bars("x", {"p"}, {{"<b>", {1}}}), Not(HasSubstr("<b>")));
}

TEST(SvgChart, LinesHaveMarksAndIntervals) {
  const std::string svg = line_chart(
      "workers", "samples/s", {1, 2},
      {{"measured", {{1, 10, 9, 11}, {2, 18, 18, 18}}}, {"ideal", {{1, 10}, {2, 20}}, /*dashed=*/true}});
  EXPECT_EQ(occurrences(svg, "<circle"), 3u) << "what is not measured has none; one is the legend's";
  EXPECT_EQ(occurrences(svg, "<polyline"), 2u);
  EXPECT_EQ(occurrences(svg, "<line x1=\"") - occurrences(svg, "class=\"grid\"") -
                occurrences(svg, "class=\"axis\""),
            3u)
      << "one interval, and both lines in the legend";
  for (const char* text : {">measured<", ">ideal<", ">workers<", ">samples/s<", ">20<"})
    EXPECT_THAT(svg, HasSubstr(text));
}

TEST(SvgChart, LinesOfOneStyleLookAlikeWhereverTheyStand) {
  const std::string svg = line_chart("x", "y", {1}, {{.name = "fourth", .points = {{1, 1}}, .style = 3}});
  EXPECT_THAT(svg, HasSubstr("class=\"l3\""));
  EXPECT_THAT(svg, HasSubstr("class=\"f3\""));
  EXPECT_EQ(occurrences(svg, "<circle"), 0u) << "a mark of another shape";
}

TEST(SvgChart, PartsOfBarsLieBehindEachOther) {
  // 100 units of 566 that are 20: five a tick.
  const std::string svg = stacked_bars("ms", {"one", "two"}, {{"bar", {5, 10}}, {"none", {0, 20}}});
  EXPECT_THAT(svg, HasSubstr("<rect x=\"4.0\" y=\"47.0\" width=\"141.5\" height=\"16\" class=\"f0\"/>"));
  EXPECT_THAT(svg, HasSubstr("<rect x=\"145.5\" y=\"47.0\" width=\"283.0\" height=\"16\" class=\"f1\"/>"));
  EXPECT_THAT(svg, HasSubstr(">15<"));
  EXPECT_EQ(occurrences(svg, "height=\"16\""), 3u) << "a part of nothing is not drawn";
}

TEST(SvgChart, LogarithmicAxesHavePowersOfTen) {
  const std::string svg = logarithmic_chart("rate", "loss", {{"smoothed", {{1e-3, 2}, {1e-1, 1}}}},
                                            {{.name = "here", .x = 1e-2}});
  for (const char* text : {">0.001<", ">0.01<", ">0.1<", ">rate<", ">loss<", ">smoothed<", ">here<"})
    EXPECT_THAT(svg, HasSubstr(text));
  // From 62 to 626, with the place in the middle.
  EXPECT_THAT(svg, HasSubstr("<line x1=\"344.0\" y1=\"66.0\" x2=\"344.0\" y2=\"316.0\" class=\"ideal\"/>"));
  EXPECT_THAT(svg, HasSubstr("<polyline points=\"62.0,66.0 626.0,191.0\""));
}

TEST(SvgChart, OfNothingIsNothing) {
  EXPECT_EQ(line_chart("x", "y", {1}, {}), "");
  EXPECT_EQ(stacked_bars("x", {}, {}), "");
  EXPECT_EQ(logarithmic_chart("x", "y", {}, {}), "");
  EXPECT_EQ(logarithmic_chart("x", "y", {{"line", {{1, 1}}}}, {}), "") << "no axis has one value";
}

}  // namespace
}  // namespace lockstep::charts
