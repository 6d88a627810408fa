#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/text.h"
#include "charts/html_page.h"
#include "charts/svg_chart.h"
#include "compare/page_parts.h"

namespace lockstep::compare {
namespace {

std::string megabytes(double bytes) { return fmt::format("{:.4g} MB", bytes / 1e6); }

/// Of each host and direction, what was counted beside what programs say.
std::string directions_table(const CompareResults& results) {
  std::vector<std::vector<std::string>> rows;
  for (const CompareRow& row : results.rows)
    for (const HostTraffic& theory : row.links_theory)
      for (const auto& [direction, field] :
           {std::pair("sends", &HostTraffic::sent), std::pair("receives", &HostTraffic::received)}) {
        double sum = 0;
        int count = 0;
        for (const CompareSample& sample : row.samples)
          for (const HostTraffic& counted : sample.traffic)
            if (counted.host == theory.host) sum += counted.*field, ++count;
        const double counted = count > 0 ? sum / count : 0;
        rows.push_back({row.name(), theory.host, direction, megabytes(theory.*field),
                        counted > 0 ? megabytes(counted) : "-",
                        counted > 0 && theory.*field > 0
                            ? fmt::format("{:+.1f} %", 100 * (counted / (theory.*field) - 1))
                            : "-"});
      }
  if (rows.empty()) return "";
  return charts::html_table({"row", "host", "direction", "by the programs", "counted", "difference"}, rows,
                            6);
}

}  // namespace

std::string traffic_part(const CompareResults& results) {
  const std::vector<std::string> names = {"by the programs", "on top of them, as the interface counted"};
  std::vector<charts::ChartBar> bars;
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
  const std::string drawing = bars.empty()
                                  ? ""
                                  : charts::html_chart(charts::stacked_bars(
                                        "megabytes of a step, in the link's busier direction", names, bars));
  return drawing +
         charts::html_table({"row", "sent by all", "link, by the programs", "link, counted", "difference",
                             "hosts", "cost of a million samples"},
                            rows, 7) +
         directions_table(results);
}

std::string links_part(const CompareResults& results) {
  std::vector<std::vector<std::string>> rows;
  const auto rate = [](double bits) { return bits > 0 ? fmt::format("{:.4g} Mbit/s", bits / 1e6) : "-"; };
  for (const CompareLink& link : results.measured_links) {
    std::vector<std::string> sums;
    for (const auto& [bytes, seconds] : link.all_reduce)
      sums.push_back(fmt::format("{} in {}", human_bytes(bytes), human_seconds(seconds)));
    rows.push_back({link.link.empty() ? "as it is" : link.link, human_seconds(link.latency_seconds),
                    rate(link.one_way_bits_per_second), rate(link.both_ways_bits_per_second),
                    join(sums, ", ")});
  }
  if (rows.empty()) return "";
  return "<h3>Measured links</h3>\n" +
         charts::html_table({"link", "latency", "one way", "each of both ways", "all-reduce by messages"},
                            rows, 4);
}

namespace {

/// The most workers whose losses are known.
int workers_of_losses(const CompareResults& results, const std::string& link) {
  int workers = 0;
  for (const CompareRow& row : results.rows)
    if (!row.losses.empty() && !row.samples.empty() && row.link == link)
      workers = std::max(workers, row.workers);
  return workers;
}

/// Lines of rows with the most workers over a link, whose points `x_of` places.
std::string loss_chart(const CompareResults& results, const std::string& link, const std::string& x_title,
                       const auto& x_of) {
  const int workers = workers_of_losses(results, link);
  std::vector<charts::ChartLine> lines;
  double most = 0;
  for (const CompareRow& row : results.rows) {
    if (row.link != link || row.workers != workers || row.losses.empty() || row.samples.empty()) continue;
    charts::ChartLine line{
        .name = row.kind, .points = {}, .marked = false, .style = style_of(results, row.kind)};
    for (const CompareLoss& loss : row.losses) {
      if (!std::isfinite(loss.loss)) continue;
      line.points.push_back({.x = x_of(row, loss), .y = loss.loss});
      most = std::max(most, line.points.back().x);
    }
    lines.push_back(std::move(line));
  }
  if (lines.empty() || most <= 0) return "";
  const std::string chart = charts::line_chart(x_title, "training loss", charts::axis_ticks(most, 5), lines);
  return charts::html_chart(chart);
}

/// All points of the drawings: a line for each, a column for each layout.
std::string loss_points(const CompareResults& results, const std::string& link) {
  const int workers = workers_of_losses(results, link);
  std::vector<const CompareRow*> drawn;
  size_t points = 0;
  for (const CompareRow& row : results.rows)
    if (row.link == link && row.workers == workers && !row.losses.empty() && !row.samples.empty()) {
      drawn.push_back(&row);
      points = std::max(points, row.losses.size());
    }
  if (drawn.empty()) return "";
  std::vector<std::string> head{"samples"};
  for (const CompareRow* row : drawn) head.push_back(row->kind);
  std::vector<std::vector<std::string>> rows;
  for (size_t i = 0; i < points; ++i) {
    std::vector<std::string> cells;
    for (const CompareRow* row : drawn) {
      if (i >= row->losses.size()) {
        cells.emplace_back("-");
        continue;
      }
      const CompareLoss& loss = row->losses[i];
      cells.push_back(fmt::format("{:.4g}, {:.3g} s", loss.loss,
                                  static_cast<double>(loss.samples) / row->samples_per_second()));
    }
    const auto longest =
        std::ranges::find_if(drawn, [&](const CompareRow* row) { return row->losses.size() == points; });
    cells.insert(cells.begin(), fmt::to_string((*longest)->losses[i].samples));
    rows.push_back(std::move(cells));
  }
  return "<details><summary>All points of these drawings</summary>\n" +
         charts::html_table(head, rows, head.size()) + "</details>\n";
}

}  // namespace

std::string losses_part(const CompareResults& results) {
  std::string text;
  for (const std::string& link : results.links()) {
    if (!link.empty()) text += fmt::format("<h3>Link: {}</h3>\n", charts::html_text(link));
    text += loss_chart(results, link, "samples", [](const CompareRow&, const CompareLoss& loss) {
      return static_cast<double>(loss.samples);
    });
    text +=
        loss_chart(results, link, "seconds of training", [](const CompareRow& row, const CompareLoss& loss) {
          return static_cast<double>(loss.samples) / row.samples_per_second();
        });
    text += loss_points(results, link);
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
  if (rows.empty()) return "<p>No run reported its losses.</p>\n";
  const std::string target =
      results.target_loss > 0 ? fmt::format("loss {:g} after", results.target_loss) : "to a target loss";
  return text + charts::html_table({"row", "loss at first", "half way", "at last", "samples", "time", target},
                                   rows, 7);
}

std::string predictions_part(const CompareResults& results) {
  std::vector<charts::ChartBar> bars;
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
                    fmt::format("{:.1f} %", 100 * results.predicted_efficiency(row)),
                    has_cores ? "" : "assuming a core for each process, although there are fewer"});
  }
  for (const CompareRow& row : results.forecasts)
    if (row.predicted_ms > 0)
      rows.push_back(
          {row.name(), "-", fmt::format("{:.2f}", row.predicted_ms), "-",
           fmt::format("{:.1f} %", 100 * results.predicted_efficiency(row)),
           fmt::format("extrapolated to one host per process; {:.1f} samples/s{}", row.predicted_rate(),
                       results.price > 0
                           ? fmt::format(", {:.4g} for a million samples", results.predicted_cost(row))
                           : "")});
  if (rows.empty()) return "<p>Nothing was predicted.</p>\n";
  std::string text;
  if (!bars.empty())
    text +=
        charts::html_chart(charts::stacked_bars("milliseconds of a step", {"measured", "predicted"}, bars));
  if (const std::optional<double> error = results.prediction_error())
    text += fmt::format("<p>Predictions are off by {:.1f} % in the median.</p>\n", 100 * *error);
  text += charts::html_table(
      {"row", "measured, ms", "predicted, ms", "difference", "efficiency, predicted", ""}, rows, 5);
  if (results.ties.empty()) return text;
  text += "<ul>\n";
  for (const CompareTie& tie : results.ties) text += "<li>" + charts::html_text(sentence_of(tie)) + "</li>\n";
  return text + "</ul>\n";
}

std::string proofs_part(const CompareResults& results) {
  std::vector<std::vector<std::string>> rows;
  for (const CompareRow& row : results.rows)
    rows.push_back({row.name(), std::string(name_of(row.proof)), row.proof_detail});
  return charts::html_table({"row", "bits", ""}, rows, 1);
}

}  // namespace lockstep::compare
