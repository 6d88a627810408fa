#include "report/layout_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "charts/svg_chart.h"

namespace lockstep::report {
namespace {

constexpr int kMostRanks = 512, kMostAcross = 8;
constexpr double kWidth = 640, kLeft = 74, kHeight = 50, kGap = 6, kLine = 16;

struct Box {
  int row = 0, column = 0;
  std::string name, host, waits;
  bool serves = false;
};

/// The first letters of a text that fit into so much room.
std::string shortened(const std::string& text, double width) {
  const auto most = static_cast<size_t>(std::max(3.0, width / 6.6));
  return text.size() <= most ? text : text.substr(0, most - 2) + "..";
}

std::vector<Box> boxes_of(const Json& report, bool has_stages) {
  const double step_ms = report.contains("step_ms") ? report["step_ms"].value("mean", 0.0) : 0.0;
  std::vector<Box> boxes;
  int workers = 0, servers = 0;
  int last_row = 0;
  for (const Json& rank : report["ranks"]) {
    Box box{.name = fmt::format("rank {}", rank.value("rank", 0)),
            .host = rank.value("host", ""),
            .serves = rank.value("role", "worker") == "server"};
    const auto waited = number_of(rank, "exposed_comm_ms"), busy = number_of(rank, "server_busy");
    if (waited && step_ms > 0)
      box.waits =
          fmt::format("waits {:.0f} %",
                      100 * std::min(1.0, (*waited + number_of(rank, "data_wait_ms").value_or(0)) / step_ms));
    if (busy) box.waits = fmt::format("busy {:.0f} %", 100 * *busy);
    if (!box.serves && has_stages) {
      const int replica = rank.value("replica", 0);
      box.row = rank.value("stage", 0);
      box.column = replica;
    } else if (!box.serves) {
      box.row = workers / kMostAcross;
      box.column = workers++ % kMostAcross;
    }
    if (!box.serves) last_row = std::max(last_row, box.row);
    boxes.push_back(std::move(box));
  }
  for (Box& box : boxes)
    if (box.serves) {
      box.row = last_row + 1 + servers / kMostAcross;
      box.column = servers++ % kMostAcross;
    }
  return boxes;
}

std::string text_at(double x, double y, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x, y, charts::html_text(text));
}

}  // namespace

std::string layout_picture(const Json& report) {
  if (!report.is_object() || !report.contains("ranks") || !report["ranks"].is_array()) return "";
  const Json& ranks = report["ranks"];
  if (ranks.empty() || ranks.size() > kMostRanks) return "";
  const bool has_stages = std::ranges::any_of(ranks, [](const Json& rank) { return rank.contains("stage"); });
  const std::vector<Box> boxes = boxes_of(report, has_stages);
  std::set<std::string> hosts;
  int rows = 0, columns = 1;
  for (const Box& box : boxes) {
    hosts.insert(box.host);
    rows = std::max(rows, box.row + 1);
    columns = std::max(columns, box.column + 1);
  }
  const double width = std::min(150.0, (kWidth - kLeft) / columns - kGap);
  if (width < 30) return "";
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"the processes of the run\" "
      "xmlns=\"http://www.w3.org/2000/svg\">\n",
      kWidth, rows * (kHeight + kGap) + 4);
  std::set<int> named;
  for (const Box& box : boxes) {
    const double x = kLeft + box.column * (width + kGap), y = 2 + box.row * (kHeight + kGap);
    if (named.insert(box.row).second) {
      const std::string name = box.serves ? "servers" : has_stages ? fmt::format("stage {}", box.row) : "";
      svg += text_at(0, y + kHeight / 2 + 4, name.empty() && box.row == 0 ? "workers" : name);
    }
    svg += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"4\" class=\"f{}\" "
        "fill-opacity=\"0.18\"/>\n",
        x, y, width, kHeight, box.serves ? 1 : 0);
    double line = y + kLine;
    svg += text_at(x + 5, line, shortened(box.name, width));
    if (hosts.size() > 1) svg += text_at(x + 5, line += kLine, shortened(box.host, width));
    if (!box.waits.empty() && width > 70) svg += text_at(x + 5, line + kLine, shortened(box.waits, width));
  }
  return svg + "</svg>\n";
}

}  // namespace lockstep::report
