#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>

#include "charts/svg_chart.h"
#include "charts/text_chart.h"
#include "cli/commands.h"
#include "cli/new_file.h"
#include "lockstep/error.h"
#include "observe/json_text.h"
#include "observe/metrics_reader.h"
#include "report/curves.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;

struct MetricsArguments {
  std::string run, svg, csv;
};

using report::Rows;

Rows read(const std::string& run) {
  std::error_code unknown;
  const std::string path = fs::is_directory(run, unknown) ? run + "/metrics.jsonl" : run;
  if (!fs::exists(path, unknown))
    throw ConfigError(fmt::format("metrics: there is no {}; name the folder of a run, its --out", path));
  Rows rows = observe::read_metrics(path);
  if (rows.empty()) throw DataError(fmt::format("{}: has no step yet", path));
  return rows;
}

/// "training loss   0.0123 at the last step, 0.0101 at best (step 980)"
std::string summary(const std::string& title, const std::vector<charts::ChartPoint>& points, bool least) {
  std::optional<charts::ChartPoint> best;
  for (const auto& point : points)
    if (std::isfinite(point.y) && (!best || (least ? point.y < best->y : point.y > best->y))) best = point;
  if (!best) return "";
  return fmt::format("{:<20} {:.6g} at last, {:.6g} at best (step {:.0f})\n", title, points.back().y, best->y,
                     best->x);
}

std::string text_of(const Rows& rows) {
  const auto loss = report::points_of(rows, "loss"), evaluations = report::points_of(rows, "eval_loss");
  std::string text =
      charts::text_chart({.title = evaluations.empty() ? "loss" : "loss, and ● on evaluation data",
                          .line = loss,
                          .marks = evaluations,
                          .rows = 14});
  text += charts::text_chart({.title = "learning rate",
                              .line = report::points_of(rows, "learning_rate"),
                              .marks = {},
                              .rows = 5,
                              .may_be_logarithmic = false});
  text += summary("training loss", loss, true) + summary("evaluation loss", evaluations, true) +
          summary("evaluation accuracy", report::points_of(rows, "eval_accuracy"), false);
  if (const auto speed = report::points_of(rows, "samples_per_second"); !speed.empty()) {
    std::vector<double> values;
    for (const auto& point : speed) values.push_back(point.y);
    std::ranges::sort(values);
    text += fmt::format("{:<20} {:.6g} in the median step\n", "samples/s", values[values.size() / 2]);
  }
  return text;
}

std::string svg_of(const Rows& rows) {
  const auto steps = report::step_ticks({&rows});
  std::vector<charts::ChartLine> losses{report::curve("training", rows, "loss")};
  if (const auto evaluations = report::curve("evaluation", rows, "eval_loss", true);
      !evaluations.points.empty())
    losses.push_back(evaluations);
  std::vector<std::string> charts{charts::line_chart("step", "loss", steps, losses)};
  if (const auto accuracy = report::curve("evaluation", rows, "eval_accuracy", true);
      !accuracy.points.empty())
    charts.push_back(charts::line_chart("step", "accuracy on evaluation data", steps, {accuracy}));
  charts.push_back(charts::line_chart("step", "learning rate", steps,
                                      {report::curve("learning rate", rows, "learning_rate")}));
  return charts::svg_file(charts);
}

/// All columns that any line has; what a line does not have is empty.
std::string csv_of(const Rows& rows) {
  std::set<std::string> names;
  for (const auto& row : rows)
    for (const auto& [name, value] : row.values()) names.insert(name);
  names.erase("step");
  std::string text = "step";
  for (const auto& name : names) text += "," + name;
  text += "\n";
  for (const auto& row : rows) {
    text += fmt::format("{}", row.step());
    for (const auto& name : names) {
      text += ",";
      const auto found = row.values().find(name);
      if (found == row.values().end()) continue;
      if (const auto* number = std::get_if<double>(&found->second))
        text += std::isnan(*number) ? "nan" : fmt::format("{}", *number);
      else
        text += "\"" + std::get<std::string>(found->second) + "\"";  // layouts have commas, and no quotes
    }
    text += "\n";
  }
  return text;
}

int metrics(const MetricsArguments& arguments) {
  const Rows rows = read(arguments.run);
  if (!arguments.svg.empty()) NewFile("--svg", arguments.svg).write(svg_of(rows));
  if (!arguments.csv.empty()) NewFile("--csv", arguments.csv).write(csv_of(rows));
  write_result(text_of(rows));
  return static_cast<int>(ExitCode::done);
}

}  // namespace

void add_metrics_command(CLI::App& program, CommandAction& selected) {
  auto& command =
      add_subcommand(program, "metrics", "Draws loss and learning rate of a run; it may still be going on",
                     "  lockstep metrics runs/digits --svg digits.svg");
  const auto arguments = std::make_shared<MetricsArguments>();
  command.add_option("RUN", arguments->run, "The folder of a run (--out), or its metrics.jsonl")
      ->type_name("DIR")
      ->required();
  command.add_option("--svg", arguments->svg, "Also draw to this file")->type_name("FILE.svg");
  command.add_option("--csv", arguments->csv, "Also write all metrics as a table to this file")
      ->type_name("FILE.csv");
  command.callback([&selected, arguments] { selected = [arguments] { return metrics(*arguments); }; });
}

}  // namespace lockstep::cli
