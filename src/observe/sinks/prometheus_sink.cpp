#include "observe/sinks/prometheus_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "observe/machine/figures.h"
#include "observe/sinks/metric_names.h"

namespace lockstep::observe {
namespace {

std::string sample_value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return exact(value);
}

std::string escaped_label(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? "\\n" : std::string(1, c);
  }
  return escaped;
}

void add_head(std::string& page, std::string_view name, const char* type, std::string_view help) {
  page += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

void add_family(std::string& page, std::string_view name, const char* type, std::string_view help,
                double value, const std::string& labels = "") {
  add_head(page, name, type, help);
  page += fmt::format("{}{} {}\n", name, labels, sample_value(value));
}

using Labels = std::vector<std::pair<std::string, std::string>>;

std::string label_text(const Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels)
    text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", name, escaped_label(value));
  return "{" + text + "}";
}

Labels labels_of(const MachineSubject& subject) {
  using Kind = MachineSubject::Kind;
  if (subject.kind == Kind::host) return {{"host", subject.host}};
  if (subject.kind == Kind::process) return {{"host", subject.host}, {"rank", std::to_string(subject.rank)}};
  // dcgm-exporter's, but for "modelName", which promtool refuses.
  Labels labels{{"gpu", std::to_string(subject.gpu)},
                {"UUID", subject.uuid},
                {"device", fmt::format("nvidia{}", subject.gpu)},
                {"model_name", subject.model},
                {"Hostname", subject.host},
                {"rank", std::to_string(subject.rank)}};
  if (subject.slice) labels.emplace_back("slice", std::to_string(*subject.slice));
  return labels;
}

const double* find_number(const MetricsRecord& record, std::string_view field) {
  const auto found = std::ranges::find(record.metrics, field, &NamedMetric::name);
  return found == record.metrics.end() ? nullptr : std::get_if<double>(&found->value);
}

}  // namespace

void PrometheusSink::open() {
  steps_ = facts_.resume_step.value_or(0);
  server_ = std::make_unique<ScrapeServer>(address_, port_);
  server_->set_page(page());
}

size_t PrometheusSink::write(std::span<const RecordPtr> records) {
  for (const auto& record : records) {
    if (!record->histograms.empty()) continue;
    if (record->machine) {
      machines_[record->machine->host + " " + group_of(*record->machine, false)] = record;
      machine_unix_seconds_ = record->unix_seconds;
      continue;
    }
    const bool evaluated =
        std::ranges::any_of(record->metrics, [](const auto& m) { return m.name == "eval_ms"; });
    Numbers& numbers = evaluated ? evaluation_ : step_;
    // What the last one does not say is not said: a skipped step before it is over.
    numbers.clear();
    for (const auto& metric : record->metrics)
      if (const double* number = std::get_if<double>(&metric.value)) numbers.emplace(metric.name, *number);
    steps_ = record->step;
    unix_seconds_ = record->unix_seconds;
  }
  server_->set_page(page());
  return records.size();
}

bool PrometheusSink::is_current(const MetricsRecord& record) const {
  constexpr double kIntervals = 5, kSlackSeconds = 10;
  return machine_unix_seconds_ - record.unix_seconds <=
         kIntervals * facts_.machine_every_seconds + kSlackSeconds;
}

void PrometheusSink::add_machines(std::string& page) const {
  for (const auto& figure : machine_figures()) {
    bool begun = figure.prometheus.empty();
    for (const auto& [name, record] : machines_) {
      if (record->machine->kind != figure.subject || figure.prometheus.empty() || !is_current(*record))
        continue;
      const double* number = find_number(*record, figure.field);
      if (number == nullptr) continue;
      if (!std::exchange(begun, true))
        // dcgm-exporter's names of counters are none that promtool accepts as such.
        add_head(page, figure.prometheus, figure.prometheus.ends_with("_total") ? "counter" : "gauge",
                 figure.help);
      page += fmt::format("{}{} {}\n", figure.prometheus, label_text(labels_of(*record->machine)),
                          sample_value(*number * figure.factor));
    }
  }
}

std::string PrometheusSink::page() const {
  std::string page;
  add_family(page, "lockstep_run_info", "gauge", "What runs; always 1.", 1, label_text(facts_.tags));
  add_family(page, "lockstep_steps_total", "counter", "Optimizer steps complete, when last logged.",
             static_cast<double>(steps_));
  add_family(page, "lockstep_planned_steps", "gauge", "Optimizer steps of the whole run.",
             static_cast<double>(facts_.total_steps));
  if (unix_seconds_ > 0)
    add_family(page, "lockstep_last_record_timestamp_seconds", "gauge",
               "When the last of these was measured.", unix_seconds_);
  for (const auto& name : metric_names())
    for (const Numbers* numbers : {&step_, &evaluation_})
      if (const auto found = numbers->find(name.field); found != numbers->end())
        add_family(page, name.prometheus, "gauge", name.help, found->second * name.factor);
  add_machines(page);
  return page;
}

}  // namespace lockstep::observe
