#include "report/run_sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/text.h"
#include "charts/html_page.h"
#include "report/layout_picture.h"

namespace lockstep::report {
namespace {

using Cells = std::vector<std::string>;

std::vector<const Rows*> rows_of(const Runs& runs, Rows RunFolder::*rows = &RunFolder::rows) {
  std::vector<const Rows*> all;
  for (const RunFolder& run : runs) all.push_back(&(run.*rows));
  return all;
}

/// A field of all runs; one that has none of it has no line. `what`: of a single run, whose name nobody
/// needs.
std::vector<charts::ChartLine> curves_of(const Runs& runs, const std::string& field, const std::string& what,
                                         bool marked) {
  std::vector<charts::ChartLine> lines;
  for (size_t i = 0; i < runs.size(); ++i) {
    std::string name = runs.size() == 1 ? what : what.empty() ? runs[i].name : runs[i].name + ", " + what;
    charts::ChartLine line = curve(name.empty() ? field : name, runs[i].rows, field, marked);
    line.style = static_cast<int>(i);
    if (!line.points.empty()) lines.push_back(std::move(line));
  }
  return lines;
}

std::string step_chart(const Runs& runs, const std::string& title, std::vector<charts::ChartLine> lines) {
  if (lines.empty()) return "";
  return charts::html_chart(charts::line_chart("step", title, step_ticks(rows_of(runs)), lines));
}

/// "1.25 s", "3.42 ms"
std::string duration_text(double milliseconds) {
  if (milliseconds >= 120'000) return fmt::format("{:.1f} min", milliseconds / 60'000);
  return milliseconds >= 1000 ? fmt::format("{:.2f} s", milliseconds / 1000)
                              : fmt::format("{:.3g} ms", milliseconds);
}

std::string text_of(const Json& report, const std::string& name) {
  if (!report.is_object() || !report.contains(name)) return "";
  const Json& value = report[name];
  return value.is_string() ? value.get<std::string>() : value.dump();
}

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
  const auto number = [](const char* name, double factor = 1, const char* unit = "") {
    return [=](const Json& report) {
      const auto found = number_of(report, name);
      return found ? fmt::format("{:.6g}{}", factor * *found, unit) : std::string();
    };
  };
  add("evaluation loss", number("eval_loss"));
  add("best evaluation loss", number("best_eval_loss"));
  add("best step", number("best_step"));
  add("perplexity", number("perplexity"));
  add("accuracy", number("eval_accuracy", 100, " %"));
  add("training loss, last step", number("train_loss"));
  add("steps", number("steps"));
  add("epochs", number("epochs"));
  add("skipped steps", [](const Json& report) {
    const auto skipped = number_of(report, "skipped_steps");
    return skipped && *skipped > 0 ? fmt::format("{:.0f}", *skipped) : std::string();
  });
  add("samples/s", number("samples_per_second"));
  add("tokens/s", number("tokens_per_second"));
  add("step", step_times);
  add("waiting for communication, per step", [](const Json& report) {
    const auto ms = number_of(report, "exposed_comm_ms");
    return ms ? duration_text(*ms) : std::string();
  });
  add("waiting for data, per step", [](const Json& report) {
    const auto ms = number_of(report, "data_wait_ms");
    return ms ? duration_text(*ms) : std::string();
  });
  add("pipeline bubble", number("bubble_fraction", 100, " %"));
  add("memory of the device", [](const Json& report) { return bytes_text(report, "peak_memory_bytes"); });
  add("memory of a process", [](const Json& report) { return bytes_text(report, "process_memory_bytes"); });
  add("layout", [](const Json& report) { return text_of(report, "layout"); });
  for (const char* hash : {"params_hash", "state_hash", "math_hash", "config_hash"})
    add(hash, [=](const Json& report) { return text_of(report, hash); });
  return rows;
}

Cells head_of(const Runs& runs, const std::string& first) {
  Cells head{first};
  for (const RunFolder& run : runs) head.push_back(run.name);
  return head;
}

}  // namespace

std::string results_section(const Runs& runs) {
  const std::vector<Cells> rows = result_rows(runs);
  return rows.empty() ? "" : "<h2>Results</h2>\n" + charts::html_table(head_of(runs, ""), rows, 1);
}

std::string learning_section(const Runs& runs) {
  std::vector<charts::ChartLine> losses = curves_of(runs, "loss", "training", false);
  for (charts::ChartLine& line : curves_of(runs, "eval_loss", "evaluation", true)) {
    if (runs.size() == 1) line.style = 1;
    line.dashed = runs.size() > 1;
    losses.push_back(std::move(line));
  }
  const std::string text =
      step_chart(runs, "loss", losses) +
      step_chart(runs, "accuracy on evaluation data", curves_of(runs, "eval_accuracy", "", true)) +
      step_chart(runs, "learning rate", curves_of(runs, "learning_rate", "", false)) +
      step_chart(runs, "gradient norm, before clipping", curves_of(runs, "grad_norm", "", false));
  return text.empty() ? "" : "<h2>Learning</h2>\n" + text;
}

std::string speed_section(const Runs& runs) {
  std::string text = step_chart(runs, "samples per second", curves_of(runs, "samples_per_second", "", false));
  if (runs.size() == 1) {
    std::vector<charts::ChartLine> lines;
    for (const auto& [field, name] : {std::pair{"step_ms", "step"},
                                      {"exposed_comm_ms", "waiting for communication"},
                                      {"data_wait_ms", "waiting for data"}})
      if (charts::ChartLine line = curve(name, runs[0].rows, field); !line.points.empty())
        lines.push_back(std::move(line));
    text += step_chart(runs, "milliseconds", lines);
  }
  return text.empty() ? "" : "<h2>Speed</h2>\n" + text;
}

namespace {

const std::vector<std::pair<std::string, std::string>>& time_parts() {
  static const std::vector<std::pair<std::string, std::string>> parts = {
      {"compute", "computing"},
      {"communication", "communication that nothing hid"},
      {"slower_ranks", "waiting for slower ranks"},
      {"bubble", "pipeline bubble"},
      {"data", "waiting for data"},
      {"host", "launches and host"},
      {"evaluation", "evaluation"},
      {"checkpoints", "checkpoints"},
      {"start", "start"},
      {"end", "end"}};
  return parts;
}

struct TimeBars {
  std::vector<charts::ChartBar> bars;
  std::vector<Cells> rows;

  void add(const std::string& name, const Json& rank) {
    const double wall = number_of(rank, "wall_ms").value_or(0);
    if (wall <= 0 || !rank.contains("parts_ms")) return;
    charts::ChartBar bar{name, {}};
    Cells row{name, duration_text(wall)};
    for (const auto& [part, title] : time_parts()) {
      const double ms = number_of(rank["parts_ms"], part).value_or(0);
      bar.parts.push_back(100 * ms / wall);
      row.push_back(fmt::format("{:.1f} %", bar.parts.back()));
    }
    const auto light = number_of(rank, "speed_of_light"), mfu = number_of(rank, "mfu");
    row.push_back(light ? fmt::format("{:.0f} %", 100 * *light) : "");
    row.push_back(mfu ? fmt::format("{:.0f} %", 100 * *mfu) : "");
    bars.push_back(std::move(bar));
    rows.push_back(std::move(row));
  }
};

/// What computing consists of, of the mean rank of each run.
std::string computing_table(const Runs& runs) {
  std::map<std::string, Cells> by_kind;
  for (size_t i = 0; i < runs.size(); ++i) {
    const Json& mean = runs[i].explanation.is_object() ? runs[i].explanation.value("mean", Json()) : Json();
    if (!mean.is_object() || !mean.contains("computing_ms")) continue;
    const double wall = number_of(mean, "wall_ms").value_or(0);
    for (const auto& [kind, ms] : mean["computing_ms"].items()) {
      if (!ms.is_number() || wall <= 0) continue;
      Cells& row = by_kind.try_emplace(kind, runs.size()).first->second;
      row[i] = fmt::format("{}, {:.1f} %", duration_text(ms.get<double>()), 100 * ms.get<double>() / wall);
    }
  }
  std::vector<Cells> rows;
  for (const auto& [kind, cells] : by_kind) {
    rows.push_back({kind});
    rows.back().insert(rows.back().end(), cells.begin(), cells.end());
  }
  if (rows.empty()) return "";
  return "<details><summary>What computing consists of</summary>\n" +
         charts::html_table(head_of(runs, "kind"), rows, 1 + runs.size()) + "</details>\n";
}

}  // namespace

std::string time_section(const Runs& runs) {
  constexpr size_t kMostBars = 32;
  TimeBars all;
  std::string notes;
  for (const RunFolder& run : runs) {
    if (!run.explanation.is_object() || !run.explanation.contains("ranks")) continue;
    const Json& ranks = run.explanation["ranks"];
    if (runs.size() > 1 || ranks.size() > kMostBars)
      all.add(runs.size() > 1 ? run.name : "all ranks", run.explanation.value("mean", Json()));
    else
      for (const Json& rank : ranks) all.add(fmt::format("rank {}", rank.value("rank", 0)), rank);
    for (const Json& note : run.explanation.value("notes", Json::array()))
      if (note.is_string())
        notes += fmt::format("<p class=\"quiet\">{}</p>\n", charts::html_text(note.get<std::string>()));
  }
  if (all.bars.empty()) return "";
  std::vector<std::string> names;
  Cells head{"", "wall clock"};
  for (const auto& [part, title] : time_parts()) names.push_back(title);
  head.insert(head.end(), names.begin(), names.end());
  head.insert(head.end(), {"speed of light", "MFU"});
  return "<h2>Where the time went</h2>\n" +
         charts::html_chart(charts::stacked_bars("percent of the wall clock", names, all.bars)) +
         charts::html_table(head, all.rows, head.size()) + computing_table(runs) + notes;
}

namespace {

/// Samples of one host, process or GPU.
struct Subject {
  std::string name;
  Rows rows;
};

std::string text_field(const observe::MetricsRow& row, const char* name) {
  const auto found = row.values().find(name);
  if (found == row.values().end()) return "";
  if (const auto* number = std::get_if<double>(&found->second)) return fmt::format("{:g}", *number);
  return std::get<std::string>(found->second);
}

/// By name: "host a", "rank 1", "GPU 0 of a".
std::vector<Subject> subjects_of(const RunFolder& run, const std::string& prefix) {
  std::vector<Subject> subjects;
  for (const auto& row : run.machines) {
    const std::string host = text_field(row, "host"), gpu = text_field(row, "gpu"),
                      slice = text_field(row, "slice"), rank = text_field(row, "rank");
    std::string name = !gpu.empty()
                           ? fmt::format("GPU {}{} of {}", gpu, slice.empty() ? "" : "." + slice, host)
                       : !rank.empty() ? fmt::format("rank {}", rank)
                                       : "host " + host;
    name = prefix + name;
    const auto found = std::ranges::find(subjects, name, &Subject::name);
    if (found == subjects.end())
      subjects.push_back({name, {row}});
    else
      found->rows.push_back(row);
  }
  return subjects;
}

struct MachineChart {
  const char* field;
  const char* title;
  double factor;
};

std::string machine_chart(const Runs& runs, const std::vector<Subject>& subjects, const MachineChart& chart) {
  constexpr size_t kMostLines = 16;
  std::vector<charts::ChartLine> lines;
  for (const Subject& subject : subjects) {
    charts::ChartLine line = curve(subject.name, subject.rows, chart.field);
    for (charts::ChartPoint& point : line.points) {
      point.y *= chart.factor;
      point.low = point.high = point.y;
    }
    if (!line.points.empty() && lines.size() < kMostLines) lines.push_back(std::move(line));
  }
  return step_chart(runs, chart.title, lines);
}

/// Means and peaks of the report, a row for each figure of each host, process and GPU.
std::string machine_table(const Runs& runs) {
  std::vector<Cells> rows;
  for (const RunFolder& run : runs) {
    if (!run.report.is_object() || !run.report.contains("machine")) continue;
    for (const char* kind : {"hosts", "gpus"})
      for (const Json& machine : run.report["machine"].value(kind, Json::array())) {
        std::string name = machine.contains("gpu")
                               ? fmt::format("GPU {} of {}", machine["gpu"].dump(), text_of(machine, "host"))
                               : "host " + text_of(machine, "host");
        if (runs.size() > 1) name = run.name + ", " + name;
        for (const auto& [field, figure] : machine.items()) {
          if (!figure.is_object() || !figure.contains("mean")) continue;
          const auto mean = number_of(figure, "mean"), most = number_of(figure, "max"),
                     p95 = number_of(figure, "p95");
          rows.push_back({name, field, mean ? fmt::format("{:.4g}", *mean) : "",
                          p95 ? fmt::format("{:.4g}", *p95) : "", most ? fmt::format("{:.4g}", *most) : ""});
        }
      }
  }
  if (rows.empty()) return "";
  return "<details><summary>All figures of hosts and GPUs</summary>\n" +
         charts::html_table({"", "figure", "mean", "95 % below", "most"}, rows, rows.front().size()) +
         "</details>\n";
}

}  // namespace

std::string machines_section(const Runs& runs) {
  std::vector<Subject> subjects;
  for (const RunFolder& run : runs)
    for (Subject& subject : subjects_of(run, runs.size() > 1 ? run.name + ", " : ""))
      subjects.push_back(std::move(subject));
  std::string text;
  for (const MachineChart& chart :
       {MachineChart{"utilization_percent", "use of GPUs, percent", 1},
        MachineChart{"memory_utilization_percent", "use of GPUs' memory controllers, percent", 1},
        MachineChart{"power_watts", "power of GPUs, watts", 1},
        MachineChart{"temperature_celsius", "temperature of GPUs, degrees Celsius", 1},
        MachineChart{"sm_clock_megahertz", "clock of GPUs, megahertz", 1},
        MachineChart{"processor_share", "processor time of hosts in use, percent", 100},
        MachineChart{"memory_used_bytes", "memory in use, GiB", std::pow(2, -30)},
        MachineChart{"network_sent_bytes_per_second", "sent by hosts' networks, MB/s", 1e-6},
        MachineChart{"memory_resident_bytes", "memory of processes, GiB", std::pow(2, -30)}})
    text += machine_chart(runs, subjects, chart);
  text += machine_table(runs);
  return text.empty() ? "" : "<h2>Machines</h2>\n" + text;
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
