#include "observe/sinks/record_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/ensure.h"
#include "observe/json_text.h"
#include "observe/machine/figures.h"

namespace lockstep::observe {
namespace {

/// Readers that tell integers from other numbers find one kind of them in all lines.
std::string number_text(double value, bool is_whole) {
  const std::string text = json_number(value);
  return is_whole || !std::isfinite(value) || text.find_first_of(".e") != std::string::npos ? text
                                                                                            : text + ".0";
}

std::string field_text(const std::string& name, const MetricValue& value, bool is_whole) {
  const double* number = std::get_if<double>(&value);
  return fmt::format(",{}:{}", json_string(name),
                     number ? number_text(*number, is_whole) : json_string(std::get<std::string>(value)));
}

}  // namespace

NamedMetric machine_metric(MachineSubject::Kind subject, std::string_view field, double value) {
  NamedMetric metric(field, value);
  const MachineFigure* figure = find_machine_figure(subject, field);
  metric.is_whole = field.ends_with("_bytes") || (figure != nullptr && figure->kind == FigureKind::rate);
  return metric;
}

std::string record_line(const MetricsRecord& record) {
  std::string line = fmt::format("{{\"step\":{}", record.step);
  if (record.machine)
    for (const auto& [name, value] : fields_of(*record.machine))
      line += field_text(name, value, /*is_whole=*/true);
  const auto& metrics = record.metrics;
  for (auto metric = metrics.begin(); metric != metrics.end(); ++metric) {
    const bool twice =
        std::any_of(metrics.begin(), metric, [&](const NamedMetric& m) { return m.name == metric->name; });
    if (twice || metric->name == "step" || (record.machine && is_subject_field(metric->name)))
      ensure(false, "two metrics of one line are named " + metric->name);
    line += field_text(metric->name, metric->value, metric->is_whole);
  }
  return line + "}\n";
}

MetricsRecord record_of(const MetricsRow& row) {
  MetricsRecord record{.step = row.step(), .metrics = {}, .machine = subject_of(row)};
  for (const auto& [name, value] : row.values()) {
    if (name == "step" || (record.machine && is_subject_field(name))) continue;
    if (const double* number = std::get_if<double>(&value))
      record.metrics.push_back(record.machine ? machine_metric(record.machine->kind, name, *number)
                                              : NamedMetric(name, *number));
    else
      record.metrics.emplace_back(name, std::get<std::string>(value));
  }
  return record;
}

}  // namespace lockstep::observe
