#include "observe/machine/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/index.h"
#include "base/json_number.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "observe/machine/rate.h"

namespace lockstep::observe {
namespace {

using Json = nlohmann::ordered_json;
using Kind = MachineSubject::Kind;

constexpr int kHundredths = 100;
constexpr size_t kMostGpusShown = 8;
constexpr double kWorthTelling = 0.01;  // of the time

/// Shares are of 1, or of 100.
double whole_of(std::string_view field) { return field.ends_with("_percent") ? 100 : 1; }

Json json_of(const MachineFigure& kind, const FigureReport& figure) {
  switch (kind.kind) {
    case FigureKind::constant:
      return figure.last;
    case FigureKind::counter:
      return {{"last", figure.last}, {"increase", figure.increase}};
    case FigureKind::rate:
      return {{"mean", figure.mean}, {"max", figure.max}, {"total", figure.total}};
    case FigureKind::level:
      return {{"mean", figure.mean}, {"max", figure.max}};
    case FigureKind::share:
      return {{"mean", figure.mean},
              {"max", figure.max},
              {"p5", figure.p5},
              {"p50", figure.p50},
              {"p95", figure.p95}};
  }
  return {};
}

FigureReport figure_of(std::string_view field, const Json& json) {
  FigureReport figure{.field = std::string(field)};
  if (json.is_number()) {
    figure.last = json.get<double>();
    return figure;
  }
  const auto number = [&](const char* name) { return json.value(name, 0.0); };
  figure.mean = number("mean");
  figure.max = number("max");
  figure.p5 = number("p5");
  figure.p50 = number("p50");
  figure.p95 = number("p95");
  figure.total = number("total");
  figure.last = number("last");
  figure.increase = number("increase");
  return figure;
}

Json json_of(const MachineReport& report) {
  const MachineSubject& subject = report.subject;
  Json json{{"host", subject.host}};
  if (subject.kind != Kind::host) json["rank"] = subject.rank;
  if (subject.kind == Kind::gpu)
    json.update({{"gpu", subject.gpu}, {"uuid", subject.uuid}, {"model", subject.model}});
  if (subject.slice) json["slice"] = *subject.slice;
  json["seconds"] = report.seconds;
  json["samples"] = report.samples;
  for (const auto& figure : report.figures)
    if (const MachineFigure* kind = find_machine_figure(subject.kind, figure.field))
      json[figure.field] = json_of(*kind, figure);
  if (!report.held_down_by.empty()) json["held_down_by"] = report.held_down_by;
  return json;
}

std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

using Rows = std::vector<std::pair<std::string, std::string>>;

/// "memory up to 3.00 GiB of 8.00 GiB"; nothing if it is not known.
void add_memory(std::vector<std::string>& parts, const MachineReport& report) {
  const auto *memory = report.find("memory_used_bytes"), *size = report.find("memory_size_bytes");
  if (memory != nullptr && size != nullptr)
    parts.push_back(fmt::format("memory up to {} of {}", human_bytes(static_cast<int64_t>(memory->max)),
                                human_bytes(static_cast<int64_t>(size->last))));
}

void add_row(Rows& rows, const std::string& name, const std::vector<std::string>& parts) {
  if (!parts.empty()) rows.emplace_back(name, join(parts, "; "));
}

void add_host(Rows& rows, const std::string& name, const MachineReport& report) {
  std::vector<std::string> use, waits;
  const auto* cores = report.find("processor_cores");
  if (const auto* share = report.find("processor_share"))
    use.push_back(fmt::format("processors {} busy{}", percent(share->mean),
                              cores != nullptr ? fmt::format(" ({:.4g} cores)", cores->last) : ""));
  add_memory(use, report);
  for (const auto& [field, what] :
       {std::pair{"pressure_memory_some_share", "memory"}, {"pressure_disk_some_share", "disks"}})
    if (const auto* waited = report.find(field); waited != nullptr && waited->mean >= kWorthTelling)
      waits.push_back(fmt::format("{} of the time for {}", percent(waited->mean), what));
  add_row(rows, name, use);
  add_row(rows, name + " waits", waits);
}

void add_gpu(Rows& rows, const std::string& name, const MachineReport& report) {
  std::vector<std::string> use, limits, errors;
  if (const auto* share = report.find("utilization_percent"))
    use.push_back(fmt::format("used {:.0f} %", share->mean));
  add_memory(use, report);
  if (const auto* power = report.find("power_watts")) use.push_back(fmt::format("{:.0f} W", power->mean));
  if (const auto* heat = report.find("temperature_celsius"))
    use.push_back(fmt::format("up to {:.0f} °C", heat->max));
  for (const auto& [reason, share] : report.held_down_by)
    if (share >= kWorthTelling) limits.push_back(fmt::format("{} {} of the time", reason, percent(share)));
  if (const auto* ecc = report.find("ecc_uncorrected_errors"); ecc != nullptr && ecc->increase > 0)
    errors.push_back(fmt::format("{:.0f} uncorrected of memory", ecc->increase));
  if (const auto* xid = report.find("xid"); xid != nullptr && xid->last > 0)
    errors.push_back(fmt::format("XID {:.0f}", xid->last));
  add_row(rows, name, use);
  add_row(rows, name + " clocks", limits);
  add_row(rows, name + " errors", errors);
}

}  // namespace

const FigureReport* MachineReport::find(std::string_view field) const {
  const auto found = std::ranges::find(figures, field, &FigureReport::field);
  return found == figures.end() ? nullptr : &*found;
}

std::string to_json(const MachineReport& report) {
  return json_of(report).dump(-1, ' ', false, Json::error_handler_t::replace);
}

MachineReport parse_machine_report(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    MachineReport report;
    MachineSubject& subject = report.subject;
    subject.host = json.at("host");
    if (json.contains("rank")) {
      subject.kind = json.contains("gpu") ? Kind::gpu : Kind::process;
      subject.rank = demand_whole_number<int>(json.at("rank"));
    }
    if (subject.kind == Kind::gpu) {
      subject.gpu = demand_whole_number<int>(json.at("gpu"));
      subject.uuid = json.at("uuid");
      subject.model = json.at("model");
      if (json.contains("slice")) subject.slice = demand_whole_number<int>(json.at("slice"));
    }
    report.seconds = json.at("seconds");
    report.samples = demand_whole_number<int64_t>(json.at("samples"));
    for (const auto& [name, value] : json.items())
      if (find_machine_figure(subject.kind, name) != nullptr)
        report.figures.push_back(figure_of(name, value));
    report.held_down_by = json.value("held_down_by", std::map<std::string, double>{});
    return report;
  } catch (const nlohmann::json::exception& error) {
    throw DataError(fmt::format("the report of a machine cannot be read: {}", error.what()));
  }
}

std::string to_json(const std::vector<MachineReport>& reports) {
  Json json{{"hosts", Json::array()}, {"processes", Json::array()}, {"gpus", Json::array()}};
  for (const auto& report : reports) {
    const Kind kind = report.subject.kind;
    json[kind == Kind::host      ? "hosts"
         : kind == Kind::process ? "processes"
                                 : "gpus"]
        .push_back(json_of(report));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::pair<std::string, std::string>> describe(const std::vector<MachineReport>& reports) {
  const auto hosts = std::ranges::count(reports, Kind::host, [](const auto& r) { return r.subject.kind; });
  Rows rows;
  size_t gpus = 0;
  for (const auto& report : reports) {
    const MachineSubject& subject = report.subject;
    if (subject.kind == Kind::host) add_host(rows, hosts > 1 ? subject.host : "host", report);
    if (subject.kind == Kind::gpu && ++gpus <= kMostGpusShown)
      add_gpu(rows, group_of(subject, hosts > 1), report);
  }
  if (gpus > kMostGpusShown)
    rows.emplace_back("more GPUs", fmt::format("{}; --json tells of all", gpus - kMostGpusShown));
  return rows;
}

MachineSummary::Machine& MachineSummary::machine_of(const MachineSample& sample) {
  const bool is_process = sample.subject.kind == Kind::process;
  Machine& machine = machines_[is_process ? "process" : group_of(sample.subject, false)];
  machine.subject = sample.subject;
  return machine;
}

void MachineSummary::begin(const MachineSample& sample) {
  Machine& machine = machine_of(sample);
  for (const auto& [field, value] : sample.figures) {
    const MachineFigure* kind = find_machine_figure(sample.subject.kind, field);
    if (kind != nullptr && kind->kind == FigureKind::counter)
      machine.figures[field] = {.count = 1, .first = value, .last = value, .max = value, .histogram = {}};
  }
}

void MachineSummary::add(const MachineSample& sample) {
  Machine& machine = machine_of(sample);
  machine.seconds += sample.seconds;
  ++machine.samples;
  for (const auto& [field, value] : sample.figures) {
    Figure& figure = machine.figures[field];
    if (figure.count++ == 0) figure.first = figure.max = value;
    figure.last = value;
    figure.max = std::max(figure.max, value);
    figure.weighted += value * sample.seconds;
    figure.seconds += sample.seconds;
    const MachineFigure* kind = find_machine_figure(sample.subject.kind, field);
    if (kind == nullptr || kind->kind != FigureKind::share) continue;
    figure.histogram.resize(kHundredths + 1);
    const double hundredths = std::round(kHundredths * value / whole_of(field));
    nth(figure.histogram, static_cast<int>(std::clamp<double>(hundredths, 0, kHundredths))) += sample.seconds;
  }
  for (const auto& reason : sample.held_down_by) machine.held_down_seconds[reason] += sample.seconds;
}

double MachineSummary::Figure::percentile(double share) const {
  double passed = 0;
  for (int bucket = 0; bucket <= kHundredths; ++bucket) {
    passed += nth(histogram, bucket);
    if (passed >= share * seconds * (1 - 1e-9)) return static_cast<double>(bucket) / kHundredths;
  }
  return 1;
}

FigureReport MachineSummary::report_of(const MachineFigure& kind, const Figure& figure) {
  FigureReport report{.field = std::string(kind.field)};
  const double mean = figure.seconds > 0 ? figure.weighted / figure.seconds : figure.last;
  switch (kind.kind) {
    case FigureKind::constant:
      report.last = figure.last;
      return report;
    case FigureKind::counter:
      report.last = figure.last;
      report.increase = figure.last - figure.first;
      return report;
    case FigureKind::rate:
      report.total = std::round(figure.weighted);
      report.mean = std::round(mean);
      break;
    case FigureKind::level:
      report.mean = std::abs(mean) < 1e4 ? short_share(mean) : std::round(mean);
      break;
    case FigureKind::share:
      report.mean = short_share(mean);
      report.p5 = figure.percentile(0.05) * whole_of(kind.field);
      report.p50 = figure.percentile(0.50) * whole_of(kind.field);
      report.p95 = figure.percentile(0.95) * whole_of(kind.field);
      break;
  }
  report.max = figure.max;
  return report;
}

std::vector<MachineReport> MachineSummary::reports() const {
  std::vector<MachineReport> reports;
  for (const auto& [group, machine] : machines_) {
    if (machine.samples == 0) continue;
    MachineReport report{.subject = machine.subject,
                         .seconds = short_share(machine.seconds),
                         .samples = machine.samples,
                         .figures = {},
                         .held_down_by = {}};
    for (const auto& kind : machine_figures())
      if (kind.subject == machine.subject.kind)
        if (const auto figure = machine.figures.find(kind.field); figure != machine.figures.end())
          report.figures.push_back(report_of(kind, figure->second));
    for (const auto& [reason, seconds] : machine.held_down_seconds)
      report.held_down_by[reason] = machine.seconds > 0 ? short_share(seconds / machine.seconds) : 0;
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace lockstep::observe
