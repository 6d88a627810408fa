#include "observe/sinks/tensorboard_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "base/host_name.h"
#include "lockstep/error.h"
#include "observe/sinks/event_file.h"
#include "observe/sinks/kept_records.h"
#include "observe/sinks/metric_names.h"

namespace lockstep::observe {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEventFile = "events.out.tfevents.";

double unix_seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Of "events.out.tfevents.1700000000.host.run"; 0 for other names.
int64_t seconds_of_name(std::string_view name) {
  int64_t seconds = 0;
  if (name.starts_with(kEventFile))
    std::from_chars(name.data() + kEventFile.size(), name.data() + name.size(), seconds);
  return seconds;
}

/// Markdown that shows `text` as it is.
std::string preformatted(const std::string& text) {
  std::string shown = "    ";
  for (const char c : text) shown += c == '\n' ? "\n    " : std::string(1, c);
  return shown;
}

std::string table(const RunFacts::Texts& rows) {
  std::string text = "| | |\n|---|---|\n";
  for (const auto& [name, value] : rows) text += fmt::format("| {} | {} |\n", name, value);
  return text;
}

/// What decides the numbers and how fast they come; the model's layers would be hundreds.
RunFacts::Texts hyperparameters(const RunFacts& facts) {
  constexpr std::string_view kSections[] = {"trainer.", "optimizer.", "precision.", "parallel."};
  RunFacts::Texts chosen;
  for (auto [name, value] : facts.fields) {
    if (std::ranges::none_of(kSections, [&](auto section) { return name.starts_with(section); })) continue;
    if (value.size() >= 2 && value.front() == '"') value = value.substr(1, value.size() - 2);
    chosen.emplace_back(std::move(name), std::move(value));
  }
  return chosen;
}

}  // namespace

std::vector<std::string> TensorboardSink::earlier_files() const {
  const fs::path folder = fs::path(facts_.directory) / kEventFolder;
  std::error_code error;
  fs::create_directories(folder, error);
  std::vector<std::string> files;
  if (!error)
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      if (!name.starts_with(kEventFile)) continue;
      if (!name.ends_with("." + facts_.run_id))
        throw ConfigError(
            fmt::format("{}: {} is of another run; move it away, or set metrics.tensorboard: false",
                        folder.string(), name));
      files.push_back(entry->path().string());
    }
  if (error) throw IoError(fmt::format("cannot make the folder {}: {}", folder.string(), error.message()));
  std::ranges::sort(files);
  return files;
}

std::string TensorboardSink::first_events(int64_t first_step) const {
  const EventTime begin{unix_seconds_now(), first_step};
  // What is said of the whole run is not of a step that may come again.
  const EventTime before{begin.unix_seconds, std::max<int64_t>(0, first_step - 1)};
  return version_event(begin.unix_seconds) + session_start_event(begin) +
         text_event(before, "run/config", preformatted(facts_.config)) +
         text_event(before, "run/facts", table(facts_.tags)) +
         hparams_event(before, facts_.run_id, hyperparameters(facts_));
}

void TensorboardSink::open() {
  const auto earlier = earlier_files();
  machine_steps_.clear();
  // Readers take files in the order of their names.
  auto seconds = static_cast<int64_t>(unix_seconds_now());
  if (!earlier.empty())
    seconds = std::max(seconds, seconds_of_name(fs::path(earlier.back()).filename().string()) + 1);
  const std::string path = fmt::format("{}/{}/{}{:010}.{}.{}", facts_.directory, kEventFolder, kEventFile,
                                       seconds, host_name(), facts_.run_id);
  // A step may have been written without its evaluation: it is repeated.
  const int64_t first = std::min(last_event_step(earlier), facts_.resume_step.value_or(0));
  std::string events = first_events(first);
  for_each_kept_record(facts_, first, [&](const MetricsRecord& record) { events += events_of(record); });
  file_.open(path, AppendFile::Start::exclusive);
  try {
    file_.append(events);
  } catch (const IoError&) {
    // The next attempt begins another one.
    file_.discard();
    throw;
  }
  last_step_ = facts_.resume_step.value_or(0);
}

std::string TensorboardSink::events_of(const MetricsRecord& record) {
  if (!record.histograms.empty())
    return histograms_event({record.unix_seconds, record.step}, record.histograms);
  if (record.machine) {
    // A step that takes long has several. Readers lose what a name has twice of one step.
    const auto [known, is_new] =
        machine_steps_.emplace(group_of(*record.machine, facts_.several_hosts), record.step);
    if (!is_new && record.step <= known->second) return "";
    known->second = record.step;
  }
  const EventTime time{record.unix_seconds, record.step};
  std::vector<std::pair<std::string, double>> values;
  std::string texts;
  for (const auto& metric : record.metrics) {
    const std::string name = record.machine ? grouped_name(*record.machine, facts_.several_hosts, metric.name)
                                            : grouped_name(metric.name);
    if (const double* number = std::get_if<double>(&metric.value))
      values.emplace_back(name, *number);
    else if (metric.name == kTextMetric)
      texts += text_event(time, name, preformatted(std::get<std::string>(metric.value)));
  }
  return (values.empty() && !texts.empty() ? "" : scalars_event(time, values)) + texts;
}

size_t TensorboardSink::write(std::span<const RecordPtr> records) {
  std::string events;
  const auto before = machine_steps_;
  for (const auto& record : records) events += events_of(*record);
  try {
    file_.append(events);
  } catch (const IoError&) {
    machine_steps_ = before;
    throw;
  }
  for (const auto& record : records) last_step_ = std::max(last_step_, record->step);
  return records.size();
}

void TensorboardSink::close(RunEnd end, const std::string&) {
  // A run that is to be resumed has not ended.
  if (end != RunEnd::killed)
    file_.append(hparams_end_event({unix_seconds_now(), last_step_}, end == RunEnd::finished));
  file_.close();
}

}  // namespace lockstep::observe
