#include "charts/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lockstep::charts {
namespace {

constexpr int kColors = 9;
constexpr double kWidth = 640;
// Of a letter of a chart's text, 12 units high.
constexpr double kAside = 6;  // between points of several lines
constexpr double kLetter = 7.3, kLine = 18;

std::string text_at(double x, double y, std::string_view anchor, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor,
                     html_text(text));
}

std::string line_between(double x1, double y1, double x2, double y2, std::string_view style) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" class=\"{}\"/>\n", x1, y1,
                     x2, y2, style);
}

std::string begin_of(double height, std::string_view what) {
  return fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"{}\" "
      "xmlns=\"http://www.w3.org/2000/svg\">\n",
      kWidth, height, html_text(what));
}

/// In its middle (x, y): shapes and colours come round at different times, so that many lines can be told
/// apart, also without colours.
std::string mark_at(double x, double y, int style) {
  const std::string fill = fmt::format("class=\"f{}\"", style % kColors);
  switch (style % 4) {
    case 0:
      return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" {}/>\n", x, y, fill);
    case 1:
      return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"7\" height=\"7\" {}/>\n", x - 3.5, y - 3.5,
                         fill);
    case 2:
      return fmt::format("<path d=\"M{:.1f},{:.1f}l4.5,8h-9z\" {}/>\n", x, y - 5, fill);
    default:
      return fmt::format("<path d=\"M{:.1f},{:.1f}l5,5l-5,5l-5,-5z\" {}/>\n", x, y - 5, fill);
  }
}

/// As the legend shows what a name means: a line, or the colour of a bar.
struct LegendName {
  std::string name;
  int style = 0;
  bool is_line = false, dashed = false, marked = false;
};

/// Names with their colours, as many in a row as there is room for.
std::string legend(const std::vector<LegendName>& names, double x, double y, double* end) {
  std::string svg;
  double at = x;
  for (const LegendName& name : names) {
    const double width = 34 + kLetter * static_cast<double>(name.name.size());
    if (at > x && at + width > kWidth) at = x, y += kLine;
    if (name.is_line)
      svg += line_between(at, y - 4, at + 18, y - 4,
                          name.dashed ? "ideal" : fmt::format("l{}", name.style % kColors));
    else
      svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"18\" height=\"10\" class=\"f{}\"/>\n", at,
                         y - 9, name.style % kColors);
    if (name.marked) svg += mark_at(at + 9, y - 4, name.style);
    svg += text_at(at + 23, y, "start", name.name);
    at += width;
  }
  *end = y;
  return svg;
}

}  // namespace

std::string html_text(std::string_view text) {
  std::string safe;
  for (const char c : text) switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:
        safe += c;
    }
  return safe;
}

std::vector<double> axis_ticks(double most, int count) {
  const double least_step = most / count;
  double step = std::pow(10, std::floor(std::log10(least_step)));
  for (const double factor : {1.0, 2.0, 5.0, 10.0})
    if (factor * step >= least_step * (1 - 1e-9)) {
      step *= factor;
      break;
    }
  std::vector<double> ticks{0};
  while (ticks.back() < most * (1 - 1e-9)) ticks.push_back(step * static_cast<double>(ticks.size()));
  return ticks;
}

std::string tick_text(double value) {
  if (value >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (value < 1000) return fmt::format("{:.4g}", value);
  const auto whole = static_cast<int64_t>(std::llround(value));
  return fmt::format("{},{:03}", whole / 1000, whole % 1000);
}

std::string line_chart(const std::string& x_title, const std::string& y_title,
                       const std::vector<double>& x_names, const std::vector<ChartLine>& lines) {
  double most_x = 0, most_y = 0;
  for (const double x : x_names) most_x = std::max(most_x, x);
  for (const ChartLine& line : lines)
    for (const ChartPoint& point : line.points) most_y = std::max({most_y, point.y, point.high});
  if (most_x <= 0 || most_y <= 0) return "";
  const std::vector<double> ticks = axis_ticks(most_y, 6);

  std::vector<LegendName> names;
  std::vector<int> styles;
  for (size_t i = 0; i < lines.size(); ++i) {
    styles.push_back(lines[i].style < 0 ? static_cast<int>(i) : lines[i].style);
    names.push_back({.name = lines[i].name,
                     .style = styles.back(),
                     .is_line = true,
                     .dashed = lines[i].dashed,
                     .marked = lines[i].marked && !lines[i].dashed});
  }
  double legend_end = 0;
  const std::string names_svg = legend(names, 62, 14, &legend_end);
  const double top = legend_end + 32, bottom = top + 250, left = 62, right = kWidth - 14;
  const auto at_x = [&](double x) { return left + (right - left) * x / (most_x * 1.04); };
  const auto at_y = [&](double y) { return bottom - (bottom - top) * y / ticks.back(); };

  std::string svg = begin_of(bottom + 46, y_title + " against " + x_title) + names_svg;
  svg += text_at(0, top - 12, "start", y_title);
  for (const double tick : ticks) {
    svg += line_between(left, at_y(tick), right, at_y(tick), tick == 0 ? "axis" : "grid");
    svg += text_at(left - 7, at_y(tick) + 4, "end", tick_text(tick));
  }
  for (const double x : x_names) {
    svg += line_between(at_x(x), bottom, at_x(x), bottom + 5, "axis");
    svg += text_at(at_x(x), bottom + 20, "middle", tick_text(x));
  }
  svg += text_at((left + right) / 2, bottom + 40, "middle", x_title);
  const auto measured =
      static_cast<double>(std::ranges::count_if(lines, [](const ChartLine& line) { return !line.dashed; }));
  for (size_t i = 0; i < lines.size(); ++i) {
    // Side by side, so that no interval hides another.
    const bool marked = lines[i].marked && !lines[i].dashed;
    const double aside = !marked ? 0 : kAside * (static_cast<double>(i) - (measured - 1) / 2);
    std::string path;
    for (const ChartPoint& point : lines[i].points)
      path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", at_x(point.x) + aside, at_y(point.y));
    svg += fmt::format("<polyline points=\"{}\" class=\"{}\"/>\n", path,
                       lines[i].dashed ? "ideal" : fmt::format("l{}", styles[i] % kColors));
    if (!marked) continue;
    for (const ChartPoint& point : lines[i].points) {
      if (point.high > point.low)
        svg += line_between(at_x(point.x) + aside, at_y(point.low), at_x(point.x) + aside, at_y(point.high),
                            fmt::format("l{}", styles[i] % kColors));
      svg += mark_at(at_x(point.x) + aside, at_y(point.y), styles[i]);
    }
  }
  return svg + "</svg>\n";
}

std::string logarithmic_chart(const std::string& x_title, const std::string& y_title,
                              const std::vector<ChartLine>& lines, const std::vector<ChartPlace>& places) {
  double first = 0, last = 0, most_y = 0;  // decades
  bool any = false;
  for (const ChartLine& line : lines)
    for (const ChartPoint& point : line.points) {
      const double x = std::log10(point.x);
      first = any ? std::min(first, x) : x;
      last = any ? std::max(last, x) : x;
      most_y = std::max(most_y, point.y);
      any = true;
    }
  if (!any || most_y <= 0 || last <= first) return "";
  std::vector<LegendName> names;
  for (size_t i = 0; i < lines.size(); ++i)
    names.push_back({.name = lines[i].name, .style = static_cast<int>(i), .is_line = true});
  double legend_end = 0;
  const std::string names_svg = legend(names, 62, 14, &legend_end);
  const double top = legend_end + 52, bottom = top + 250, left = 62, right = kWidth - 14;
  const std::vector<double> ticks = axis_ticks(most_y, 6);
  const auto at_x = [&](double x) {
    return left + (right - left) * (std::log10(x) - first) / (last - first);
  };
  const auto at_y = [&](double y) { return bottom - (bottom - top) * y / ticks.back(); };

  std::string svg = begin_of(bottom + 46, y_title + " against " + x_title) + names_svg;
  svg += text_at(0, top - 12, "start", y_title);
  for (const double tick : ticks) {
    svg += line_between(left, at_y(tick), right, at_y(tick), tick == 0 ? "axis" : "grid");
    svg += text_at(left - 7, at_y(tick) + 4, "end", tick_text(tick));
  }
  for (double decade = std::ceil(first - 1e-9); decade <= last + 1e-9; ++decade) {
    const double x = at_x(std::pow(10, decade));
    svg += line_between(x, bottom, x, bottom + 5, "axis");
    svg += text_at(x, bottom + 20, "middle", fmt::format("{:.4g}", std::pow(10, decade)));
  }
  svg += text_at((left + right) / 2, bottom + 40, "middle", x_title);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string path;
    for (const ChartPoint& point : lines[i].points)
      path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", at_x(point.x), at_y(point.y));
    svg += fmt::format("<polyline points=\"{}\" class=\"l{}\"/>\n", path, i % kColors);
  }
  for (const ChartPlace& place : places) {
    svg += line_between(at_x(place.x), top, at_x(place.x), bottom, "ideal");
    svg += text_at(at_x(place.x), top - 6, "middle", place.name);
  }
  return svg + "</svg>\n";
}

std::string stacked_bars(const std::string& x_title, const std::vector<std::string>& part_names,
                         const std::vector<ChartBar>& bars) {
  double most = 0;
  size_t longest = 0;
  for (const ChartBar& bar : bars) {
    most = std::max(most, std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0));
    longest = std::max(longest, bar.name.size());
  }
  if (most <= 0) return "";
  const std::vector<double> ticks = axis_ticks(most, 5);
  double top = 0;
  std::vector<LegendName> names;
  for (size_t i = 0; i < part_names.size(); ++i)
    names.push_back({.name = part_names[i], .style = static_cast<int>(i)});
  std::string svg = legend(names, 0, 14, &top);
  top += 14;
  // Names stand above their bars, so that they may be long on narrow screens, too.
  const double each = 40, left = 4, right = kWidth - 70,
               bottom = top + each * static_cast<double>(bars.size());
  const auto at_x = [&](double x) { return left + (right - left) * x / ticks.back(); };
  svg = begin_of(bottom + 46, x_title) + svg;
  for (const double tick : ticks) {
    svg += line_between(at_x(tick), top, at_x(tick), bottom, tick == 0 ? "axis" : "grid");
    svg += text_at(at_x(tick), bottom + 18, tick == 0 ? "start" : "middle", tick_text(tick));
  }
  svg += text_at((left + right) / 2, bottom + 40, "middle", x_title);
  for (size_t b = 0; b < bars.size(); ++b) {
    const double y = top + each * static_cast<double>(b);
    svg += text_at(left + 4, y + 14, "start", bars[b].name);
    double sum = 0;
    for (size_t part = 0; part < bars[b].parts.size(); ++part) {
      const double value = bars[b].parts[part];
      if (value > 0)
        svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"16\" class=\"f{}\"/>\n",
                           at_x(sum), y + 19, at_x(sum + value) - at_x(sum), part % kColors);
      sum += value;
    }
    svg += text_at(at_x(sum) + 6, y + 32, "start", fmt::format("{:.3g}", sum));
  }
  return svg + "</svg>\n";
}

std::string svg_file(const std::vector<std::string>& charts) {
  std::string inner;
  double height = 0;
  for (const std::string& chart : charts) {
    if (chart.empty()) continue;
    // As begin_of() writes it.
    const size_t box = chart.find("viewBox=\"0 0 ") + 13;
    const double own = std::stod(chart.substr(chart.find(' ', box) + 1));
    inner += fmt::format("<svg y=\"{:.0f}\" width=\"{:.0f}\" height=\"{:.0f}\" {}", height, kWidth, own,
                         chart.substr(chart.find("viewBox")));
    height += own;
  }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" "
      "height=\"{:.0f}\">\n"
      "<style>{}svg {{ max-width: none; min-width: 0; }}</style>\n{}</svg>\n",
      kWidth, height, kWidth, height, chart_style(), inner);
}

std::string_view chart_style() {
  return R"(svg { display: block; width: 100%; min-width: 34rem; max-width: 52rem; height: auto; }
svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
svg line, svg polyline { fill: none; }
.axis { stroke: currentColor; stroke-width: 1; }
.grid { stroke: currentColor; stroke-opacity: 0.18; stroke-width: 1; }
.ideal { stroke: currentColor; stroke-opacity: 0.6; stroke-dasharray: 5 4; stroke-width: 1.5; }
.l0 { stroke: #0072b2; } .l1 { stroke: #d55e00; } .l2 { stroke: #009e73; } .l3 { stroke: #cc79a7; }
.l4 { stroke: #e69f00; } .l5 { stroke: #56b4e9; } .l6 { stroke: #8c6bb1; } .l7 { stroke: #999933; }
.l8 { stroke: currentColor; }
.l0, .l1, .l2, .l3, .l4, .l5, .l6, .l7, .l8 { stroke-width: 2; }
.f0 { fill: #0072b2; } .f1 { fill: #d55e00; } .f2 { fill: #009e73; } .f3 { fill: #cc79a7; }
.f4 { fill: #e69f00; } .f5 { fill: #56b4e9; } .f6 { fill: #8c6bb1; } .f7 { fill: #999933; }
.f8 { fill: currentColor; }
@media (prefers-color-scheme: dark) {
  .l0 { stroke: #56a8e0; } .f0 { fill: #56a8e0; } .l1 { stroke: #f08a4b; } .f1 { fill: #f08a4b; }
}
)";
}

}  // namespace lockstep::charts
