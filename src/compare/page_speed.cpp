#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "charts/html_page.h"
#include "charts/svg_chart.h"
#include "compare/page_parts.h"

namespace lockstep::compare {
namespace {

/// Over one link.
std::string throughput(const CompareResults& results, const std::string& link) {
  std::vector<double> workers;
  for (const CompareRow& row : results.rows)
    if (std::ranges::find(workers, row.workers) == workers.end()) workers.push_back(row.workers);
  std::ranges::sort(workers);
  std::vector<charts::ChartLine> lines;
  double best_of_one = 0;  // samples per second of each worker, where there are fewest
  for (const std::string& kind : kinds_of(results)) {
    charts::ChartLine line{.name = kind, .points = {}, .style = style_of(results, kind)};
    for (const CompareRow& row : results.rows) {
      if (row.link != link || row.kind != kind || row.samples.empty()) continue;
      const Interval interval = row.step_interval();
      const auto rate = [&](double step_ms) { return 1e3 * static_cast<double>(row.global_batch) / step_ms; };
      line.points.push_back({.x = static_cast<double>(row.workers),
                             .y = row.samples_per_second(),
                             .low = rate(interval.high),
                             .high = rate(interval.low)});
      if (row.workers == static_cast<int>(workers.front()))
        best_of_one = std::max(best_of_one, row.samples_per_second() / row.workers);
    }
    std::ranges::sort(line.points, {}, &charts::ChartPoint::x);
    if (!line.points.empty()) lines.push_back(std::move(line));
  }
  if (best_of_one > 0 && workers.size() > 1)
    lines.push_back({.name = "ideal",
                     .points = {{.x = workers.front(), .y = best_of_one * workers.front()},
                                {.x = workers.back(), .y = best_of_one * workers.back()}},
                     .dashed = true});
  return charts::html_chart(charts::line_chart("workers", "samples per second", workers, lines));
}

/// Throughput of each worker, beside the fewest; "" if there is one number of workers alone.
std::string efficiency_chart(const CompareResults& results, const std::string& link) {
  std::vector<double> workers;
  std::vector<charts::ChartLine> lines;
  for (const std::string& kind : kinds_of(results)) {
    charts::ChartLine line{.name = kind, .points = {}, .style = style_of(results, kind)};
    for (const CompareRow& row : results.rows) {
      if (row.link != link || row.kind != kind || row.samples.empty()) continue;
      const auto count = static_cast<double>(row.workers), percent = 100 * results.efficiency(row);
      line.points.push_back({.x = count, .y = percent, .low = percent, .high = percent});
      if (std::ranges::find(workers, count) == workers.end()) workers.push_back(count);
    }
    std::ranges::sort(line.points, {}, &charts::ChartPoint::x);
    if (!line.points.empty()) lines.push_back(std::move(line));
  }
  if (workers.size() < 2) return "";
  std::ranges::sort(workers);
  return charts::html_chart(charts::line_chart("workers", "efficiency, percent", workers, lines));
}

std::string throughput_table(const CompareResults& results) {
  std::vector<std::vector<std::string>> rows;
  for (const CompareRow& row : results.rows) {
    if (row.samples.empty()) {
      rows.push_back({row.name(), fmt::to_string(row.layout.world_size()), "", "", "", "", "0",
                      row.failure.empty() ? "not measured" : row.failure});
      continue;
    }
    const Interval interval = row.step_interval();
    rows.push_back(
        {row.name(), fmt::to_string(row.layout.world_size()), fmt::format("{:.2f}", row.step_ms()),
         fmt::format("{:.2f} to {:.2f}", interval.low, interval.high),
         fmt::format("{:.1f}", row.samples_per_second()),
         fmt::format("{:.1f} %", 100 * results.efficiency(row)), fmt::to_string(row.samples.size()),
         std::string(name_of(row.proof)) + (row.failure.empty() ? "" : "; then failed: " + row.failure)});
  }
  return charts::html_table(
      {"row", "processes", "step, ms", "95 %", "samples/s", "efficiency", "runs", "bits"}, rows, 7);
}

/// Milliseconds of a step's parts, which add up to it.
std::vector<double> parts_of(const CompareRow& row) {
  double left = row.mean(&CompareSample::step_ms);
  std::vector<double> parts;
  const auto take = [&](double milliseconds) {
    parts.push_back(std::clamp(milliseconds, 0.0, left));
    left -= parts.back();
  };
  const double bubble = row.mean(&CompareSample::bubble_ms), server = row.mean(&CompareSample::server_ms);
  take(row.mean(&CompareSample::compute_ms));
  take(row.mean(&CompareSample::exposed_comm_ms) - bubble - server);
  take(server);
  take(bubble);
  take(row.mean(&CompareSample::data_wait_ms));
  parts.push_back(left);
  return parts;
}

}  // namespace

std::string throughput_part(const CompareResults& results) {
  std::string text;
  for (const std::string& link : results.links()) {
    if (!link.empty()) text += fmt::format("<h3>Link: {}</h3>\n", charts::html_text(link));
    text += throughput(results, link) + efficiency_chart(results, link);
  }
  return text + throughput_table(results);
}

std::string steps_part(const CompareResults& results) {
  const std::vector<std::string> names = {"computing",       "communication",    "servers' work",
                                          "pipeline bubble", "waiting for data", "the rest"};
  std::vector<charts::ChartBar> bars;
  std::vector<std::vector<std::string>> rows;
  for (const CompareRow& row : results.rows) {
    if (row.samples.empty()) continue;
    bars.push_back({row.name(), parts_of(row)});
    std::vector<std::string> cells{row.name()};
    for (const double part : bars.back().parts)
      cells.push_back(
          fmt::format("{:.2f} ms, {:.0f} %", part, 100 * part / row.mean(&CompareSample::step_ms)));
    cells.push_back(fmt::format("{:.0f} %", 100 * row.mean(&CompareSample::server_busy)));
    cells.push_back(fmt::format("{:.2f}", row.mean(&CompareSample::staleness_mean)));
    if (!results.straggler.empty())
      cells.push_back(fmt::format("{:.2f} ms, {:.0f} %", row.mean(&CompareSample::straggler_step_ms),
                                  100 * row.straggler_goodput()));
    if (results.kill_rank >= 0)
      cells.push_back(!row.kill ? "-"
                      : !row.kill->failure.empty()
                          ? "FAILED: " + row.kill->failure
                          : fmt::format("{:.2f} s, undisturbed {:.2f} s, {:.0f} %, {} start{}",
                                        row.kill->seconds, row.kill->undisturbed_seconds,
                                        100 * row.kill->goodput(), row.kill->starts,
                                        row.kill->starts == 1 ? "" : "s"));
    rows.push_back(std::move(cells));
  }
  std::vector<std::string> head{"row"};
  head.insert(head.end(), names.begin(), names.end());
  head.insert(head.end(), {"server busy", "staleness"});
  if (!results.straggler.empty()) head.push_back("with straggler " + results.straggler);
  const size_t numbers = head.size();
  if (results.kill_rank >= 0) head.push_back(fmt::format("with worker {} killed", results.kill_rank));
  return charts::html_chart(charts::stacked_bars("milliseconds of a step", names, bars)) +
         charts::html_table(head, rows, numbers);
}

/// How stale pushes were, of rows in which they may be.
std::string staleness_part(const CompareResults& results) {
  constexpr size_t kMostParts = 8;
  const auto is_told = [](const CompareRow& row) {
    return std::ranges::any_of(
        row.samples, [](const CompareSample& sample) { return !sample.staleness_histogram.empty(); });
  };
  std::vector<std::string> names;
  for (size_t i = 0; i + 1 < kMostParts; ++i) names.push_back(fmt::to_string(i));
  names.push_back(fmt::format("{} or more", kMostParts - 1));
  std::vector<charts::ChartBar> bars;
  std::vector<std::vector<std::string>> rows;
  for (const CompareRow& row : results.rows) {
    if (!is_told(row)) continue;
    std::vector<double> parts(kMostParts);
    double all = 0;
    int64_t most = 0;
    for (const CompareSample& sample : row.samples) {
      most = std::max(most, sample.staleness_max);
      for (size_t i = 0; i < sample.staleness_histogram.size(); ++i) {
        parts[std::min(i, kMostParts - 1)] += static_cast<double>(sample.staleness_histogram[i]);
        all += static_cast<double>(sample.staleness_histogram[i]);
      }
    }
    if (all == 0) continue;
    const std::optional<int> bound = row.samples.front().staleness_bound;
    std::vector<std::string> cells{row.name(), bound ? fmt::to_string(*bound) : "none", fmt::to_string(most),
                                   fmt::format("{:.2f}", row.mean(&CompareSample::staleness_mean))};
    for (double& part : parts) {
      part *= 100 / all;
      cells.push_back(fmt::format("{:.1f} %", part));
    }
    bars.push_back({row.name(), parts});
    rows.push_back(std::move(cells));
  }
  if (bars.empty()) return "";
  std::vector<std::string> head{"row", "bound", "most", "mean"};
  head.insert(head.end(), names.begin(), names.end());
  return "<h2>How stale gradients were</h2>\n" +
         charts::html_chart(charts::stacked_bars(
             "percent of pushes, by updates that others had made meanwhile", names, bars)) +
         charts::html_table(head, rows, head.size());
}

}  // namespace lockstep::compare
