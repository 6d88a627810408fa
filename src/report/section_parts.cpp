#include "report/section_parts.h"

#include <fmt/format.h>

#include "charts/html_page.h"

namespace lockstep::report {

std::vector<charts::ChartLine> curves_of(const Runs& runs, const std::string& field, const std::string& what,
                                         bool marked) {
  std::vector<charts::ChartLine> lines;
  for (size_t i = 0; i < runs.size(); ++i) {
    charts::ChartLine line = curve(runs.size() == 1 ? what : runs[i].name, runs[i].rows, field, marked);
    line.style = static_cast<int>(i);
    if (!line.points.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

std::string step_chart(const Runs& runs, const std::string& title,
                       const std::vector<charts::ChartLine>& lines) {
  if (lines.empty()) return "";
  std::vector<const Rows*> rows;
  for (const RunFolder& run : runs) rows.push_back(&run.rows);
  return charts::html_chart(charts::line_chart("step", title, step_ticks(rows), lines));
}

std::string beside(const std::string& charts) {
  return charts.empty() ? "" : "<div class=\"charts\">\n" + charts + "</div>\n";
}

std::string duration_text(double milliseconds) {
  if (milliseconds >= 120'000) return fmt::format("{:.1f} min", milliseconds / 60'000);
  return milliseconds >= 1000 ? fmt::format("{:.2f} s", milliseconds / 1000)
                              : fmt::format("{:.3g} ms", milliseconds);
}

std::string text_of(const Json& object, const std::string& name) {
  if (!object.is_object() || !object.contains(name)) return "";
  const Json& value = object[name];
  return value.is_string() ? value.get<std::string>() : value.dump();
}

Cells head_of(const Runs& runs, const std::string& first) {
  Cells head{first};
  for (const RunFolder& run : runs) head.push_back(run.name);
  return head;
}

}  // namespace lockstep::report
