#include "charts/text_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::charts {
namespace {

std::vector<ChartPoint> points(const std::vector<double>& values) {
  std::vector<ChartPoint> points;
  for (size_t i = 0; i < values.size(); ++i)
    points.push_back({.x = static_cast<double>(i + 1), .y = values[i]});
  return points;
}

TEST(TextChart, DrawsALineOfDots) {
  EXPECT_EQ(text_chart({.title = "loss", .line = points({4, 3, 2, 1}), .marks = {}, .columns = 2, .rows = 1}),
            "loss\n"
            "        4 ┤⠙⢦\n"
            "     step  1 4\n");
}

TEST(TextChart, MarksStandOverTheLine) {
  const std::string chart = text_chart(
      {.title = "t", .line = points({2, 1}), .marks = {{.x = 1, .y = 2}}, .columns = 4, .rows = 2});
  EXPECT_EQ(chart,
            "t\n"
            "        2 ┤●\n"
            "        1 ┤   ⢀\n"
            "     step  1  2\n");
}

TEST(TextChart, SpreadsItsHorizontalAxisByDecades) {
  const std::string chart = text_chart({.title = "t",
                                        .line = {{.x = 1e-3, .y = 3}, {.x = 0.1, .y = 2}, {.x = 10, .y = 1}},
                                        .marks = {{.x = 0.1, .y = 2}},
                                        .columns = 9,
                                        .rows = 3,
                                        .x_name = "rate",
                                        .x_is_logarithmic = true});
  EXPECT_THAT(chart, testing::HasSubstr("          ┤    ●\n"));
  EXPECT_THAT(chart, testing::EndsWith("     rate  0.001  10\n"));
}

TEST(TextChart, IsLogarithmicOverManyOrdersOfMagnitude) {
  const auto wide = points({100, 10, 1});
  EXPECT_THAT(text_chart({.title = "t", .line = wide, .marks = {}}),
              testing::StartsWith("t (logarithmic)\n"));
  EXPECT_THAT(text_chart({.title = "t", .line = wide, .marks = {}, .may_be_logarithmic = false}),
              testing::StartsWith("t\n"));
  EXPECT_THAT(text_chart({.title = "t", .line = points({100, 0}), .marks = {}}), testing::StartsWith("t\n"));
}

TEST(TextChart, WhatIsNotFiniteIsLeftOut) {
  const double nan = std::numeric_limits<double>::quiet_NaN(),
               infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(text_chart({.title = "t", .line = points({nan, infinity}), .marks = {}}), "");
  EXPECT_THAT(text_chart({.title = "t", .line = points({nan, 5}), .marks = {}}), testing::HasSubstr("5 ┤"));
}

TEST(TextChart, ManyPointsBecomeTheMeansOfTheirColumns) {
  const auto means = bucket_means(points({1, 3, 5, 7}), 2);
  ASSERT_EQ(means.size(), 2u);
  EXPECT_EQ(means[0].y, 2);
  EXPECT_EQ(means[1].y, 6);
}

}  // namespace
}  // namespace lockstep::charts
