#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include "charts/html_page.h"
#include "report/section_parts.h"

namespace lockstep::report {
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
    if (!line.points.empty()) lines.push_back(std::move(line));
  }
  std::string title = chart.title;
  if (lines.size() > kMostLines) {
    title += fmt::format(": the first {} of {}", kMostLines, lines.size());
    lines.resize(kMostLines);
  }
  return step_chart(runs, title, lines);
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
  const std::string table = machine_table(runs);
  return text.empty() && table.empty() ? "" : "<h2>Machines</h2>\n" + beside(text) + table;
}

}  // namespace lockstep::report
