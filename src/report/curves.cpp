#include "report/curves.h"

#include <algorithm>
#include <cmath>

#include "charts/text_chart.h"

namespace lockstep::report {
namespace {

constexpr int kDrawnPoints = 400;
constexpr size_t kMostMarks = 40;

}  // namespace

std::vector<charts::ChartPoint> points_of(const Rows& rows, const std::string& field) {
  std::vector<charts::ChartPoint> points;
  for (const auto& row : rows)
    if (row.has(field)) points.push_back({.x = static_cast<double>(row.step()), .y = row.number(field)});
  return points;
}

std::vector<charts::ChartPoint> drawn_points(const Rows& rows, const std::string& field) {
  auto points = points_of(rows, field);
  std::erase_if(points, [](const charts::ChartPoint& point) { return !std::isfinite(point.y); });
  points = charts::bucket_means(points, kDrawnPoints);
  for (auto& point : points) point.low = point.high = point.y;
  return points;
}

charts::ChartLine curve(const std::string& name, const Rows& rows, const std::string& field, bool marked) {
  charts::ChartLine line{.name = name, .points = drawn_points(rows, field)};
  line.marked = marked && line.points.size() <= kMostMarks;
  return line;
}

std::vector<double> step_ticks(const std::vector<const Rows*>& runs) {
  double last = 1;
  for (const Rows* rows : runs)
    for (const auto& row : *rows) last = std::max(last, static_cast<double>(row.step()));
  return charts::axis_ticks(last, 8);
}

}  // namespace lockstep::report
