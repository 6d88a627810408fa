#pragma once

#include <string>
#include <vector>

#include "cli/svg_chart.h"

namespace lockstep::cli {

struct TextChart {
  std::string title;
  std::vector<ChartPoint> line;   ///< ascending by x
  std::vector<ChartPoint> marks;  ///< drawn over it
  int columns = 64, rows = 10;    ///< of characters, axes not counted
  bool may_be_logarithmic = true;
};

/// A chart of characters (Braille's, each of 2 x 4 dots) for a terminal, with its lowest and highest value at
/// the left and steps below. Where several points share a column of dots, their mean is drawn. The vertical
/// axis is logarithmic, if it may be, where all values are above 0 and the highest is more than 50 times the
/// lowest; the title says so. What is not finite is left out; "" if nothing is left.
std::string text_chart(const TextChart& chart);

/// The same points, each the mean of those that share one of `buckets` equal parts of the axis.
std::vector<ChartPoint> bucket_means(const std::vector<ChartPoint>& points, int buckets);

}  // namespace lockstep::cli
