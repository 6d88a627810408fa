#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::charts {

/// Text escaped for HTML and SVG.
std::string html_text(std::string_view text);

/// Rounded numbers from 0 to at least `most`, evenly spaced by 1, 2 or 5 times a power of ten: at most
/// `count` of them above 0. REQUIRES: most is above 0.
std::vector<double> axis_ticks(double most, int count);
/// A label of an axis: "0", "2.5", "1,500", "3M".
std::string tick_text(double value);

struct ChartPoint {
  double x = 0, y = 0;
  double low = 0, high = 0;  ///< of its interval; equal: none is drawn
};
struct ChartLine {
  std::string name;
  std::vector<ChartPoint> points;  ///< ascending by x
  bool dashed = false;             ///< without marks: not measured
  bool marked = true;              ///< points have marks, side by side if several lines share them
  int style = -1;  ///< of its colour and its mark: lines of several charts that mean one thing; -1: its place
};
/// Lines with marks over the numbers of the horizontal axis; both axes begin at 0.
std::string line_chart(const std::string& x_title, const std::string& y_title,
                       const std::vector<double>& x_names, const std::vector<ChartLine>& lines);

/// A place on the horizontal axis, with a name above it.
struct ChartPlace {
  std::string name;
  double x = 0;
};
/// Lines without marks over a logarithmic horizontal axis, named at powers of ten, and dashed lines up from
/// places. The vertical axis begins at 0. "" without a point. REQUIRES: every x is above 0.
std::string logarithmic_chart(const std::string& x_title, const std::string& y_title,
                              const std::vector<ChartLine>& lines, const std::vector<ChartPlace>& places);

struct ChartBar {
  std::string name;
  std::vector<double> parts;  ///< one behind the other
};
/// Horizontal bars of several parts, which a legend names, with the sum after each bar.
std::string stacked_bars(const std::string& x_title, const std::vector<std::string>& part_names,
                         const std::vector<ChartBar>& bars);

/// Charts below each other, as a self-contained file.
std::string svg_file(const std::vector<std::string>& charts);

/// The CSS that charts need: colours for colour-blind readers (Okabe and Ito 2008), on light and dark
/// backgrounds.
std::string_view chart_style();

}  // namespace lockstep::charts
