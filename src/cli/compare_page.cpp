#include "cli/compare_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "cli/svg_chart.h"

namespace lockstep::cli {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 60rem;
       color: #1b1f24; background: #ffffff; }
h1 { font-size: 1.3rem; line-height: 1.35; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin-top: 2.2rem; }
h3 { font-size: 0.95rem; } .answer { font-weight: 600; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.86rem; margin: 0.8rem 0; }
th, td { padding: 0.25rem 0.7rem 0.25rem 0; text-align: right; white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child, .words { text-align: left; }
td.words { white-space: normal; min-width: 9rem; }
thead th { border-bottom: 1px solid #8a929c; font-weight: 600; }
code, pre { font: 0.86rem ui-monospace, monospace; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.quiet { opacity: 0.75; font-size: 0.9rem; }
@media (prefers-color-scheme: dark) { body { color: #e4e7eb; background: #14171a; } }
@media print { body { max-width: none; padding: 0; color: #000; background: #fff; } h2 { break-after: avoid; }
               svg { break-inside: avoid; } }
)";

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

/// Over one link.
std::string throughput(const CompareResults& results, const std::string& link) {
  std::vector<double> workers;
  for (const CompareRow& row : results.rows)
    if (std::ranges::find(workers, row.workers) == workers.end()) workers.push_back(row.workers);
  std::ranges::sort(workers);
  std::vector<ChartLine> lines;
  double best_of_one = 0;  // samples per second of each worker, where there are fewest
  for (const std::string& kind : kinds_of(results)) {
    ChartLine line{.name = kind, .points = {}};
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

std::string throughput(const CompareResults& results) {
  std::string text;
  for (const std::string& link : results.links()) {
    if (!link.empty()) text += fmt::format("<h3>Link: {}</h3>\n", html_text(link));
    text += throughput(results, link);
  }
  return text;
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
  return table_text({"row", "processes", "step, ms", "95 %", "samples/s", "efficiency", "runs", "bits"}, rows,
                    7);
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

std::string step_times(const CompareResults& results) {
  const std::vector<std::string> names = {"computing",       "communication",    "servers' work",
                                          "pipeline bubble", "waiting for data", "the rest"};
  std::vector<ChartBar> bars;
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
    rows.push_back(std::move(cells));
  }
  std::vector<std::string> head{"row"};
  head.insert(head.end(), names.begin(), names.end());
  head.insert(head.end(), {"server busy", "staleness"});
  if (!results.straggler.empty()) head.push_back("with straggler " + results.straggler);
  return "<div class=\"scroll\">\n" + stacked_bars("milliseconds of a step", names, bars) + "</div>\n" +
         table_text(head, rows, head.size());
}

std::string megabytes(double bytes) { return fmt::format("{:.4g} MB", bytes / 1e6); }

std::string traffic(const CompareResults& results) {
  const std::vector<std::string> names = {"by the programs", "on top of them, as the interface counted"};
  std::vector<ChartBar> bars;
  std::vector<std::vector<std::string>> rows;
  for (const CompareRow& row : results.rows) {
    if (row.samples.empty()) continue;
    const double counted = row.mean(&CompareSample::link_bytes_per_step), theory = row.link_bytes_theory;
    if (theory > 0 && counted > 0)
      bars.push_back({row.name(), {theory / 1e6, std::max(counted - theory, 0.0) / 1e6}});
    rows.push_back({row.name(), megabytes(row.mean(&CompareSample::sent_bytes_per_step)),
                    theory > 0 ? megabytes(theory) : "-",
                    theory > 0 && counted > 0 ? megabytes(counted) : "-",
                    theory > 0 && counted > 0 ? fmt::format("{:+.1f} %", 100 * (counted / theory - 1)) : "-",
                    fmt::format("{:g}", row.mean(&CompareSample::hosts)),
                    results.price > 0 ? fmt::format("{:.4g}", results.cost(row)) : "-"});
  }
  const std::string drawing =
      bars.empty()
          ? ""
          : "<div class=\"scroll\">\n" +
                stacked_bars("megabytes of a step, in the link's busier direction", names, bars) + "</div>\n";
  return drawing + table_text({"row", "sent by all", "link, by the programs", "link, counted", "difference",
                               "hosts", "cost of a million samples"},
                              rows, 7);
}

/// Lines of rows with the most workers over a link, whose points `x_of` places.
std::string loss_chart(const CompareResults& results, const std::string& link, const std::string& x_title,
                       const auto& x_of) {
  int workers = 0;
  for (const CompareRow& row : results.rows)
    if (!row.losses.empty() && !row.samples.empty() && row.link == link)
      workers = std::max(workers, row.workers);
  std::vector<ChartLine> lines;
  double most = 0;
  for (const CompareRow& row : results.rows) {
    if (row.link != link || row.workers != workers || row.losses.empty() || row.samples.empty()) continue;
    ChartLine line{.name = row.kind, .points = {}, .marked = false};
    for (const CompareLoss& loss : row.losses) {
      if (!std::isfinite(loss.loss)) continue;
      line.points.push_back({.x = x_of(row, loss), .y = loss.loss});
      most = std::max(most, line.points.back().x);
    }
    lines.push_back(std::move(line));
  }
  if (lines.empty() || most <= 0) return "";
  const std::string chart = line_chart(x_title, "training loss", axis_ticks(most, 5), lines);
  return "<div class=\"scroll\">\n" + chart + "</div>\n";
}

std::string losses(const CompareResults& results) {
  std::string text;
  for (const std::string& link : results.links()) {
    if (!link.empty()) text += fmt::format("<h3>Link: {}</h3>\n", html_text(link));
    text += loss_chart(results, link, "samples", [](const CompareRow&, const CompareLoss& loss) {
      return static_cast<double>(loss.samples);
    });
    text +=
        loss_chart(results, link, "seconds of training", [](const CompareRow& row, const CompareLoss& loss) {
          return static_cast<double>(loss.samples) / row.samples_per_second();
        });
  }
  std::vector<std::vector<std::string>> rows;
  for (const CompareRow& row : results.rows) {
    if (row.losses.empty() || row.samples.empty()) continue;
    const CompareLoss &middle = row.losses[row.losses.size() / 2], &last = row.losses.back();
    const std::optional<double> reached = row.seconds_to(results.target_loss);
    rows.push_back({row.name(), fmt::format("{:.4g}", row.losses.front().loss),
                    fmt::format("{:.4g}", middle.loss), fmt::format("{:.4g}", last.loss),
                    fmt::to_string(last.samples),
                    human_seconds(static_cast<double>(last.samples) / row.samples_per_second()),
                    results.target_loss == 0 ? "-"
                    : reached                ? human_seconds(*reached)
                                             : "not reached"});
  }
  if (rows.empty()) return "<p>No run has told its losses.</p>\n";
  const std::string target =
      results.target_loss > 0 ? fmt::format("loss {:g} after", results.target_loss) : "to a target loss";
  return text +
         table_text({"row", "loss at first", "half way", "at last", "samples", "time", target}, rows, 7);
}

std::string predictions(const CompareResults& results) {
  std::vector<ChartBar> bars;
  std::vector<std::vector<std::string>> rows;
  for (const CompareRow& row : results.rows) {
    if (row.predicted_ms == 0) continue;
    const bool is_measured = !row.samples.empty(), has_cores = results.has_cores(row);
    if (is_measured && has_cores) {
      bars.push_back({row.name() + ", measured", {row.step_ms(), 0}});
      bars.push_back({row.name() + ", predicted", {0, row.predicted_ms}});
    }
    rows.push_back({row.name(), is_measured ? fmt::format("{:.2f}", row.step_ms()) : "-",
                    fmt::format("{:.2f}", row.predicted_ms),
                    is_measured ? fmt::format("{:+.1f} %", 100 * row.prediction_error()) : "-",
                    has_cores ? "" : "for a core for each process, of which there are fewer"});
  }
  for (const CompareRow& row : results.forecasts)
    if (row.predicted_ms > 0)
      rows.push_back({row.name(), "-", fmt::format("{:.2f}", row.predicted_ms), "-",
                      fmt::format("extrapolated: each process on a host of its own; {:.1f} samples/s",
                                  row.predicted_rate())});
  if (rows.empty()) return "<p>Nothing was predicted.</p>\n";
  std::string text;
  if (!bars.empty())
    text += "<div class=\"scroll\">\n" +
            stacked_bars("milliseconds of a step", {"measured", "predicted"}, bars) + "</div>\n";
  if (const std::optional<double> error = results.prediction_error())
    text += fmt::format("<p>Predictions are off by {:.1f} % in the median.</p>\n", 100 * *error);
  text += table_text({"row", "measured, ms", "predicted, ms", "difference", ""}, rows, 4);
  if (results.ties.empty()) return text;
  text += "<ul>\n";
  for (const CompareTie& tie : results.ties) text += "<li>" + html_text(sentence_of(tie)) + "</li>\n";
  return text + "</ul>\n";
}

std::string proofs(const CompareResults& results) {
  std::vector<std::vector<std::string>> rows;
  for (const CompareRow& row : results.rows)
    rows.push_back({row.name(), std::string(name_of(row.proof)), row.proof_detail});
  return table_text({"row", "bits", ""}, rows, 1);
}

}  // namespace

std::string compare_page(const CompareResults& results) {
  std::string page = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>lockstep compare: {}</title>\n<style>{}{}</style></head>\n<body>\n",
      html_text(results.config), kStyle, chart_style());
  const std::vector<std::string> answers = results.answers();
  page += fmt::format("<h1>{}</h1>\n", html_text(answers.front()));
  for (size_t i = 1; i < answers.size(); ++i)
    page += fmt::format("<p class=\"answer\">{}</p>\n", html_text(answers[i]));
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
      "<p class=\"quiet\">Means of all runs, of the worker that waited longest. The bubble is what a "
      "pipeline's "
      "schedule makes it wait, and servers' work the time in which a server was busy, both as far as the "
      "worker waited at all. Staleness is in updates. With a straggler: the step of runs in which a worker "
      "computes so many times as long, and what is left of throughput.</p>\n";
  page +=
      "<h2>What moves</h2>\n" + traffic(results) +
      "<p class=\"quiet\">Of a step. Sent by all: what exchanges of all processes send, also within a host. "
      "What an interface counts has headers and acknowledgements in it, and what else the host sends. Of "
      "modes that wait for nobody the "
      "programs' bytes are those of workers that push equally often.</p>\n";
  page += "<h2>Loss</h2>\n" + losses(results) +
          "<p class=\"quiet\">Of the first run of each row, with the most workers in drawings; means of "
          "equal numbers of "
          "steps. Seconds are those of steps at the median pace, without start-up.</p>\n";
  page +=
      "<h2>Predicted beside measured</h2>\n" + predictions(results) +
      "<p class=\"quiet\">By the programs of all processes, with what layers take in a training of as many "
      "workers by all-reduce, and what messages take between two of them (lockstep bench). To tie is to "
      "take no more than 1.02 times as long.</p>\n";
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
