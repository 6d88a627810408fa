#include "cli/compare_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/svg_chart.h"

namespace lockstep::cli {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 60rem;
       color: #1b1f24; background: #ffffff; }
h1 { font-size: 1.3rem; line-height: 1.35; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin-top: 2.2rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.86rem; margin: 0.8rem 0; }
th, td { padding: 0.25rem 0.7rem 0.25rem 0; text-align: right; white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child, .words { text-align: left; }
td.words { white-space: normal; }
thead th { border-bottom: 1px solid #8a929c; font-weight: 600; }
code, pre { font: 0.86rem ui-monospace, monospace; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.quiet { opacity: 0.75; font-size: 0.9rem; }
@media (prefers-color-scheme: dark) { body { color: #e4e7eb; background: #14171a; } }
@media print { body { max-width: none; padding: 0; color: #000; background: #fff; } h2 { break-after: avoid; }
               svg { break-inside: avoid; } }
)";

std::string name_of_row(const CompareRow& row) {
  return fmt::format("{} worker{}, {}", row.workers, row.workers == 1 ? "" : "s", row.kind);
}

double mean_of(const CompareRow& row, double CompareSample::*field) {
  double sum = 0;
  for (const CompareSample& sample : row.samples) sum += sample.*field;
  return sum / static_cast<double>(row.samples.size());
}

std::string row_text(const std::vector<std::string>& cells, const char* tag, size_t words) {
  std::string text = "<tr>";
  for (size_t i = 0; i < cells.size(); ++i)
    text += fmt::format("<{}{}>{}</{}>", tag, i >= words ? " class=\"words\"" : "", html_text(cells[i]), tag);
  return text + "</tr>\n";
}

/// Columns from `words` on hold text.
std::string table_text(const std::vector<std::string>& head,
                       const std::vector<std::vector<std::string>>& rows, size_t words) {
  std::string text =
      "<div class=\"scroll\"><table>\n<thead>" + row_text(head, "th", words) + "</thead>\n<tbody>\n";
  for (const auto& row : rows) text += row_text(row, "td", words);
  return text + "</tbody></table></div>\n";
}

std::vector<std::string> kinds_of(const CompareResults& results) {
  std::vector<std::string> kinds;
  for (const CompareRow& row : results.rows)
    if (std::ranges::find(kinds, row.kind) == kinds.end()) kinds.push_back(row.kind);
  return kinds;
}

std::string throughput(const CompareResults& results) {
  std::vector<double> workers;
  for (const CompareRow& row : results.rows)
    if (std::ranges::find(workers, row.workers) == workers.end()) workers.push_back(row.workers);
  std::ranges::sort(workers);
  std::vector<ChartLine> lines;
  double best_of_one = 0;  // samples per second of each worker, where there are fewest
  for (const std::string& kind : kinds_of(results)) {
    ChartLine line{.name = kind, .points = {}};
    for (const CompareRow& row : results.rows) {
      if (row.kind != kind || row.samples.empty()) continue;
      const Interval interval = row.step_interval();
      const auto rate = [&](double step_ms) { return 1e3 * static_cast<double>(row.global_batch) / step_ms; };
      line.points.push_back({.x = static_cast<double>(row.workers),
                             .y = row.samples_per_second(),
                             .low = rate(interval.high),
                             .high = rate(interval.low)});
      if (row.workers == static_cast<int>(workers.front()))
        best_of_one = std::max(best_of_one, row.samples_per_second() / row.workers);
    }
    std::ranges::sort(line.points, {}, &ChartPoint::x);
    if (!line.points.empty()) lines.push_back(std::move(line));
  }
  if (best_of_one > 0 && workers.size() > 1)
    lines.push_back({.name = "ideal",
                     .points = {{.x = workers.front(), .y = best_of_one * workers.front()},
                                {.x = workers.back(), .y = best_of_one * workers.back()}},
                     .dashed = true});
  return "<div class=\"scroll\">\n" + line_chart("workers", "samples per second", workers, lines) +
         "</div>\n";
}

std::string throughput_table(const CompareResults& results) {
  std::vector<std::vector<std::string>> rows;
  for (const CompareRow& row : results.rows) {
    if (row.samples.empty()) {
      rows.push_back({name_of_row(row), fmt::to_string(row.layout.world_size()), "", "", "", "", "0",
                      row.failure.empty() ? "not measured" : row.failure});
      continue;
    }
    const Interval interval = row.step_interval();
    rows.push_back(
        {name_of_row(row), fmt::to_string(row.layout.world_size()), fmt::format("{:.2f}", row.step_ms()),
         fmt::format("{:.2f} to {:.2f}", interval.low, interval.high),
         fmt::format("{:.1f}", row.samples_per_second()),
         fmt::format("{:.1f} %", 100 * results.efficiency(row)), fmt::to_string(row.samples.size()),
         std::string(name_of(row.proof)) + (row.failure.empty() ? "" : "; then failed: " + row.failure)});
  }
  return table_text({"row", "processes", "step, ms", "95 %", "samples/s", "efficiency", "runs", "bits"}, rows,
                    7);
}

std::string step_times(const CompareResults& results) {
  const std::vector<std::string> parts = {"computing, and what else a worker does",
                                          "waiting for communication", "waiting for data"};
  std::vector<ChartBar> bars;
  std::vector<std::vector<std::string>> rows;
  for (const CompareRow& row : results.rows) {
    if (row.samples.empty()) continue;
    const double step = mean_of(row, &CompareSample::step_ms);
    const double data = std::min(step, mean_of(row, &CompareSample::data_wait_ms));
    const double waits = std::min(step - data, mean_of(row, &CompareSample::exposed_comm_ms));
    bars.push_back({name_of_row(row), {step - data - waits, waits, data}});
    std::vector<std::string> cells{name_of_row(row)};
    for (const double part : bars.back().parts)
      cells.push_back(fmt::format("{:.2f} ms, {:.0f} %", part, 100 * part / step));
    cells.push_back(fmt::format("{:.3g} MB", mean_of(row, &CompareSample::sent_bytes_per_step) / 1e6));
    cells.push_back(fmt::format("{:.0f} %", 100 * mean_of(row, &CompareSample::server_busy)));
    cells.push_back(fmt::format("{:.2f}", mean_of(row, &CompareSample::staleness_mean)));
    rows.push_back(std::move(cells));
  }
  return "<div class=\"scroll\">\n" + stacked_bars("milliseconds of a step", parts, bars) + "</div>\n" +
         table_text({"row", "computes", "communication", "data", "sent", "server busy", "staleness"}, rows,
                    7);
}

std::string proofs(const CompareResults& results) {
  std::vector<std::vector<std::string>> rows;
  for (const CompareRow& row : results.rows)
    rows.push_back({name_of_row(row), std::string(name_of(row.proof)), row.proof_detail});
  return table_text({"row", "bits", ""}, rows, 1);
}

}  // namespace

std::string compare_page(const CompareResults& results) {
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>lockstep compare: {}</title>\n<style>{}{}</style></head>\n<body>\n<h1>{}</h1>\n",
      html_text(results.config), kStyle, chart_style(), html_text(results.headline()));
  page += fmt::format(
      "<p class=\"quiet\">{}, {} of {} steps each, {} scaling, on {} with {} core{}, begun {}, lockstep "
      "{}</p>\n",
      html_text(results.config), "runs", results.steps, results.weak ? "weak" : "strong",
      html_text(results.host), results.cores, results.cores == 1 ? "" : "s", html_text(results.began),
      html_text(results.version));
  page += "<h2>Throughput</h2>\n" + throughput(results) +
          "<p class=\"quiet\">Medians of runs in turns, with intervals of 95 % by bootstrap. Ideal: the "
          "fastest with the "
          "fewest workers, times their number. Servers are processes of their own, which are not counted as "
          "workers.</p>\n" +
          throughput_table(results);
  page +=
      "<h2>What a step's time goes to</h2>\n" + step_times(results) +
      "<p class=\"quiet\">Means of all runs. Waiting is that of the worker that waited longest; it holds a "
      "pipeline's bubble. Bytes are those of exchanges of all processes in a step; staleness is in "
      "updates.</p>\n";
  page += fmt::format("<h2>Are the results the same?</h2>\n<p>{}</p>\n",
                      results.proof_steps == 0
                          ? "It was not tried."
                          : fmt::format("Loss, gradient norm, parameters and optimizer state after each of "
                                        "{} steps under REPRODUCIBLE, "
                                        "bit by bit, beside the first layout of the same batch.",
                                        results.proof_steps));
  page += proofs(results);
  page += fmt::format(
      "<h2>Again</h2>\n<pre>{}</pre>\n<p class=\"quiet\">results.json beside this page has every "
      "run; its config's hash is {}.</p>\n</body></html>\n",
      html_text(results.command), html_text(results.config_hash));
  return page;
}

}  // namespace lockstep::cli
