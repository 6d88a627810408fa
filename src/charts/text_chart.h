#pragma once

#include <string>
#include <vector>

#include "charts/svg_chart.h"

namespace lockstep::charts {

struct TextChart {
  std::string title;
  std::vector<ChartPoint> line;   ///< ascending by x
  std::vector<ChartPoint> marks;  ///< drawn over it
  int columns = 64, rows = 10;    ///< of characters, axes not counted
  bool may_be_logarithmic = true;
  std::string x_name = "step";
  bool x_is_logarithmic = false;  ///< then every x is above 0
};

/// A chart of Braille characters (2 x 4 dots each) for a terminal, with its lowest and highest value at the
/// left and those of the horizontal axis below. If several points share a column of dots, their mean is
/// drawn. If allowed, the vertical axis is logarithmic when all values are above 0 and the highest is more
/// than 50 times the lowest; the title says so. Values that are not finite are skipped; "" if nothing is
/// left.
std::string text_chart(const TextChart& chart);

/// The means of the points in each of `buckets` equal parts of the axis.
std::vector<ChartPoint> bucket_means(const std::vector<ChartPoint>& points, int buckets);

}  // namespace lockstep::charts
