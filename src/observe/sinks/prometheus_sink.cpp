#include "observe/sinks/prometheus_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
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

void add_family(std::string& page, std::string_view name, const char* type, std::string_view help,
                double value, const std::string& labels = "") {
  page += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0}{3} {4}\n", name, help, type, labels,
                      sample_value(value));
}

}  // namespace

void PrometheusSink::open() {
  steps_ = facts_.resume_step.value_or(0);
  server_ = std::make_unique<ScrapeServer>(address_, port_);
  server_->set_page(page());
}

size_t PrometheusSink::write(std::span<const RecordPtr> records) {
  for (const auto& record : records) {
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

std::string PrometheusSink::page() const {
  std::string page, labels;
  for (const auto& [name, value] : facts_.tags)
    labels += fmt::format("{}{}=\"{}\"", labels.empty() ? "" : ",", name, escaped_label(value));
  add_family(page, "lockstep_run_info", "gauge", "What runs; always 1.", 1, "{" + labels + "}");
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
  return page;
}

}  // namespace lockstep::observe
