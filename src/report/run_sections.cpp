#include "report/run_sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/text.h"
#include "charts/html_page.h"
#include "observe/sinks/sink.h"
#include "report/layout_picture.h"
#include "report/section_parts.h"

namespace lockstep::report {
namespace {

std::string step_times(const Json& report) {
  if (!report.is_object() || !report.contains("step_ms")) return "";
  const Json& step = report["step_ms"];
  return fmt::format(
      "{} (half of them below {}, 99 % below {})", duration_text(number_of(step, "mean").value_or(0)),
      duration_text(number_of(step, "p50").value_or(0)), duration_text(number_of(step, "p99").value_or(0)));
}

std::string bytes_text(const Json& report, const std::string& name) {
  const auto bytes = number_of(report, name);
  return bytes ? human_bytes(static_cast<int64_t>(*bytes)) : "";
}

/// What the report says, as a row for each thing and a column for each run.
std::vector<Cells> result_rows(const Runs& runs) {
  std::vector<Cells> rows;
  const auto add = [&](const std::string& title, const auto& text) {
    Cells row{title};
    for (const RunFolder& run : runs) row.push_back(text(run.report));
    if (std::any_of(row.begin() + 1, row.end(), [](const std::string& cell) { return !cell.empty(); }))
      rows.push_back(std::move(row));
  };
  const auto number = [](const char* name) {
    return [=](const Json& report) {
      const auto found = number_of(report, name);
      return found ? fmt::format("{:.6g}", *found) : std::string();
    };
  };
  const auto percent = [](const char* name) {
    return [=](const Json& report) {
      const auto share = number_of(report, name);
      return share ? fmt::format("{:.2f} %", 100 * *share) : std::string();
    };
  };
  const auto duration = [](const char* name) {
    return [=](const Json& report) {
      const auto ms = number_of(report, name);
      return ms ? duration_text(*ms) : std::string();
    };
  };
  add("evaluation loss", number("eval_loss"));
  add("best evaluation loss", number("best_eval_loss"));
  add("best step", number("best_step"));
  add("perplexity", number("perplexity"));
  add("accuracy", percent("eval_accuracy"));
  add("training loss, last step", number("train_loss"));
  add("steps", number("steps"));
  add("epochs", number("epochs"));
  add("skipped steps", [](const Json& report) {
    const auto skipped = number_of(report, "skipped_steps");
    return skipped && *skipped > 0 ? fmt::format("{:.0f}", *skipped) : std::string();
  });
  add("gradient noise scale, samples", number("noise_scale"));
  add("samples/s", number("samples_per_second"));
  add("tokens/s", number("tokens_per_second"));
  add("step", step_times);
  add("waiting for communication, per step", duration("exposed_comm_ms"));
  add("waiting for data, per step", duration("data_wait_ms"));
  add("pipeline bubble", percent("bubble_fraction"));
  add("memory of the device", [](const Json& report) { return bytes_text(report, "peak_memory_bytes"); });
  add("memory of a process", [](const Json& report) { return bytes_text(report, "process_memory_bytes"); });
  add("layout", [](const Json& report) { return text_of(report, "layout"); });
  for (const char* hash : {"params_hash", "state_hash", "math_hash", "config_hash"})
    add(hash, [=](const Json& report) { return text_of(report, hash); });
  return rows;
}

}  // namespace

std::string results_section(const Runs& runs) {
  const std::vector<Cells> rows = result_rows(runs);
  return rows.empty() ? "" : "<h2>Results</h2>\n" + charts::html_table(head_of(runs, ""), rows, 1);
}

std::string learning_section(const Runs& runs) {
  std::vector<charts::ChartLine> losses = curves_of(runs, "loss", "training", false);
  std::vector<charts::ChartLine> evaluations = curves_of(runs, "eval_loss", "evaluation", true);
  if (runs.size() == 1)  // on one chart
    for (charts::ChartLine& line : std::exchange(evaluations, {})) {
      line.style = 1;
      losses.push_back(std::move(line));
    }
  const std::string text =
      step_chart(runs, "loss", losses) + step_chart(runs, "loss on evaluation data", evaluations) +
      step_chart(runs, "accuracy on evaluation data", curves_of(runs, "eval_accuracy", "evaluation", true)) +
      step_chart(runs, "learning rate", curves_of(runs, "learning_rate", "learning rate", false)) +
      step_chart(runs, "gradient norm, before clipping",
                 curves_of(runs, "grad_norm", "gradient norm", false));
  return text.empty() ? "" : "<h2>Learning</h2>\n" + beside(text);
}

/// What models wrote (trainer.sample): the last text, and those before it if one asks.
std::string text_section(const Runs& runs) {
  std::string text;
  for (const RunFolder& run : runs) {
    std::vector<std::string> shown;
    for (const observe::MetricsRow& row : run.rows) {
      const auto found = row.values().find(observe::kTextMetric);
      if (found == row.values().end()) continue;
      if (const auto* words = std::get_if<std::string>(&found->second))
        shown.push_back(fmt::format("<p class=\"quiet\">{}</p>\n<pre>{}</pre>\n",
                                    charts::html_text(fmt::format("{}, step {}", run.name, row.step())),
                                    charts::html_text(*words)));
    }
    if (shown.empty()) continue;
    text += shown.back();
    shown.pop_back();
    if (!shown.empty())
      text += "<details><summary>Before that</summary>\n" + join(shown, "") + "</details>\n";
  }
  return text.empty() ? "" : "<h2>What the model writes</h2>\n" + text;
}

std::string speed_section(const Runs& runs) {
  std::string text = step_chart(runs, "samples per second",
                                curves_of(runs, "samples_per_second", "samples per second", false));
  if (runs.size() == 1) {
    std::vector<charts::ChartLine> lines;
    for (const auto& [field, name] : {std::pair{"step_ms", "step"},
                                      {"exposed_comm_ms", "waiting for communication"},
                                      {"data_wait_ms", "waiting for data"}})
      if (charts::ChartLine line = curve(name, runs[0].rows, field); !line.points.empty())
        lines.push_back(std::move(line));
    text += step_chart(runs, "milliseconds", lines);
  }
  return text.empty() ? "" : "<h2>Speed</h2>\n" + beside(text);
}

std::string layout_section(const Runs& runs) {
  std::string text;
  for (const RunFolder& run : runs) {
    const std::string picture = layout_picture(run.report);
    if (picture.empty()) continue;
    text += fmt::format("<h3>{}: {}</h3>\n", charts::html_text(run.name),
                        charts::html_text(text_of(run.report, "layout"))) +
            charts::html_chart(picture);
  }
  return text.empty() ? "" : "<h2>Layout</h2>\n" + text;
}

namespace {

/// Fields in which the configs differ, a column for each run.
std::vector<Cells> differences(const Runs& runs) {
  std::map<std::string, Cells> fields;
  for (size_t i = 0; i < runs.size(); ++i)
    for (const auto& [name, value] : runs[i].fields)
      fields.try_emplace(name, runs.size()).first->second[i] = value;
  std::vector<Cells> rows;
  for (const auto& [name, values] : fields) {
    if (std::ranges::all_of(values, [&](const std::string& value) { return value == values.front(); }))
      continue;
    rows.push_back({name});
    rows.back().insert(rows.back().end(), values.begin(), values.end());
  }
  return rows;
}

}  // namespace

std::string config_section(const Runs& runs) {
  std::string text;
  if (runs.size() > 1) {
    const std::vector<Cells> rows = differences(runs);
    text += rows.empty() ? "<p>The configs are the same.</p>\n"
                         : "<p>Fields in which the configs differ; all others are the same.</p>\n" +
                               charts::html_table(head_of(runs, "field"), rows, 1);
  }
  for (const RunFolder& run : runs) {
    if (run.config.empty()) continue;
    if (!run.config_problem.empty())
      text += fmt::format("<p class=\"quiet\">{}</p>\n",
                          charts::html_text("This version cannot read the config of " + run.name + ": " +
                                            run.config_problem));
    text += fmt::format("<details><summary>Config of {}</summary>\n<pre>{}</pre></details>\n",
                        charts::html_text(run.name), charts::html_text(run.config));
  }
  return text.empty() ? "" : "<h2>Config</h2>\n" + text;
}

}  // namespace lockstep::report
