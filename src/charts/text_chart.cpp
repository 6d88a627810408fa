#include "charts/text_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace lockstep::charts {
namespace {

constexpr int kDotsAcross = 2, kDotsDown = 4;
constexpr double kLogarithmicFrom = 50;
constexpr const char* kMark = "●";

/// Which bit of a Braille character is the dot in this column and row of it (Unicode, U+2800).
unsigned dot_bit(int column, int row) {
  constexpr std::array<std::array<unsigned, kDotsAcross>, kDotsDown> kBits{
      {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}};
  return kBits[static_cast<size_t>(row)][static_cast<size_t>(column)];
}

std::string braille(unsigned bits) {
  const unsigned code = 0x2800 + bits;
  return {static_cast<char>(0xe0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3f)),
          static_cast<char>(0x80 | (code & 0x3f))};
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  /// From 0 to 1.
  double share(double value) const { return high > low ? (value - low) / (high - low) : 0.5; }
};

std::vector<ChartPoint> finite(const std::vector<ChartPoint>& points) {
  std::vector<ChartPoint> kept;
  std::copy_if(points.begin(), points.end(), std::back_inserter(kept),
               [](const ChartPoint& point) { return std::isfinite(point.y); });
  return kept;
}

}  // namespace

std::vector<ChartPoint> bucket_means(const std::vector<ChartPoint>& points, int buckets) {
  Range x;
  for (const auto& point : points) x.add(point.x);
  std::vector<ChartPoint> means;
  int last = -1;
  double count = 0;
  for (const auto& point : points) {
    const int bucket = std::min(buckets - 1, static_cast<int>(x.share(point.x) * buckets));
    if (bucket != last) {
      means.emplace_back();
      last = bucket;
      count = 0;
    }
    ++count;
    means.back().x += (point.x - means.back().x) / count;
    means.back().y += (point.y - means.back().y) / count;
  }
  return means;
}

std::string text_chart(const TextChart& chart) {
  const int across = chart.columns * kDotsAcross, down = chart.rows * kDotsDown;
  const auto placed = [&](std::vector<ChartPoint> points) {
    if (chart.x_is_logarithmic)
      for (ChartPoint& point : points) point.x = std::log(point.x);
    return points;
  };
  const auto line = bucket_means(placed(finite(chart.line)), across), marks = placed(finite(chart.marks));
  Range x, y;
  for (const auto* points : {&line, &marks})
    for (const auto& point : *points) {
      x.add(point.x);
      y.add(point.y);
    }
  if (!(y.low <= y.high)) return "";
  const bool logarithmic = chart.may_be_logarithmic && y.low > 0 && y.high > kLogarithmicFrom * y.low;
  const Range scale = logarithmic ? Range{std::log(y.low), std::log(y.high)} : y;
  const auto row_of = [&](double value) {
    const double share = scale.share(logarithmic ? std::log(value) : value);
    return static_cast<int>(std::lround((1 - share) * (down - 1)));
  };
  const auto column_of = [&](double value) {
    return static_cast<int>(std::lround(x.share(value) * (across - 1)));
  };

  const auto cells = static_cast<size_t>(chart.rows * chart.columns);
  std::vector<unsigned> dots(cells, 0);
  std::vector<bool> marked(cells, false);
  const auto cell_of = [&](int column, int row) {
    return static_cast<size_t>(row / kDotsDown * chart.columns + column / kDotsAcross);
  };
  for (size_t i = 0; i < line.size(); ++i) {
    const int column = column_of(line[i].x), row = row_of(line[i].y);
    // Up or down to the point before it, so that a steep line has no gaps.
    const int from = i == 0 || column_of(line[i - 1].x) + 1 < column ? row : row_of(line[i - 1].y);
    for (int r = std::min(from, row); r <= std::max(from, row); ++r)
      dots[cell_of(column, r)] |= dot_bit(column % kDotsAcross, r % kDotsDown);
  }
  for (const auto& mark : marks) marked[cell_of(column_of(mark.x), row_of(mark.y))] = true;

  std::string text = fmt::format("{}{}\n", chart.title, logarithmic ? " (logarithmic)" : "");
  for (int row = 0; row < chart.rows; ++row) {
    const std::string label = row == 0                ? fmt::format("{:.4g}", y.high)
                              : row + 1 == chart.rows ? fmt::format("{:.4g}", y.low)
                                                      : "";
    text += fmt::format("{:>9} ┤", label);
    std::string drawn;
    for (int column = 0; column < chart.columns; ++column) {
      const auto cell = static_cast<size_t>(row * chart.columns + column);
      drawn += marked[cell] ? kMark : dots[cell] == 0 ? " " : braille(dots[cell]);
    }
    while (drawn.ends_with(' ')) drawn.pop_back();
    text += drawn + "\n";
  }
  const std::string first = chart.x_is_logarithmic ? fmt::format("{:.3g}", std::exp(x.low))
                                                   : fmt::format("{:g}", x.low),
                    last = chart.x_is_logarithmic ? fmt::format("{:.3g}", std::exp(x.high))
                                                  : fmt::format("{:.10g}", x.high);
  const int gap = chart.columns - static_cast<int>(first.size() + last.size());
  return text + fmt::format("{:>9}  {}{:>{}}{}\n", chart.x_name, first, "", std::max(1, gap), last);
}

}  // namespace lockstep::charts
