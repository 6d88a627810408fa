#include "observe/sinks/mlflow_sink.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "observe/sinks/append_file.h"
#include "observe/sinks/kept_records.h"
#include "observe/sinks/metric_names.h"

namespace lockstep::observe {
namespace {

constexpr const char* kStartTag = "lockstep.start";
constexpr const char* kMathTag = "lockstep.math_hash";

int64_t unix_milliseconds_now() {
  using std::chrono::milliseconds;
  return std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string base64(const std::string& text) {
  constexpr const char* kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string encoded;
  for (size_t i = 0; i < text.size(); i += 3) {
    const auto byte = [&](size_t at) {
      return at < text.size() ? static_cast<uint32_t>(static_cast<unsigned char>(text[at])) : 0u;
    };
    const uint32_t bits = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
    for (size_t k = 0; k < 4; ++k) encoded += i + k > text.size() ? '=' : kDigits[bits >> (18 - 6 * k) & 63];
  }
  return encoded;
}

HttpOptions http_options() {
  HttpOptions options;
  const std::string token = environment("MLFLOW_TRACKING_TOKEN"),
                    user = environment("MLFLOW_TRACKING_USERNAME");
  if (!user.empty())
    options.headers.push_back("Authorization: Basic " +
                              base64(user + ":" + environment("MLFLOW_TRACKING_PASSWORD")));
  else if (!token.empty())
    options.headers.push_back("Authorization: Bearer " + token);
  return options;
}

std::string tag_of(const RunFacts& facts, std::string_view name) {
  const auto found = std::ranges::find(facts.tags, name, &std::pair<std::string, std::string>::first);
  return found == facts.tags.end() ? "" : found->second;
}

}  // namespace

MlflowSink::MlflowSink(const MlflowOptions& options, RunFacts facts, std::unique_ptr<HttpClient> http)
    : options_(options), facts_(std::move(facts)), client_(std::move(http), options.uri) {
  start_ =
      to_hex(hash_combine(static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count()),
                          static_cast<uint64_t>(::getpid())));
  // "." has no name.
  if (options_.run_name.empty() && !facts_.directory.empty())
    options_.run_name = std::filesystem::weakly_canonical(facts_.directory).filename().string();
  if (options_.run_name.empty()) options_.run_name = "lockstep";
}

std::optional<MlflowRun> MlflowSink::old_run() {
  const std::string path = facts_.directory + "/" + kMlflowFile;
  if (facts_.directory.empty() || !facts_.resume_step || !std::filesystem::exists(path)) return std::nullopt;
  const auto kept = nlohmann::json::parse(read_text_file(path), nullptr, /*allow_exceptions=*/false);
  if (!kept.is_object() || kept.value("run", "") != facts_.run_id || kept.value("uri", "") != client_.uri())
    return std::nullopt;
  auto found = client_.find_run(kept.value("mlflow_run", ""));
  if (found)
    repeats_until_ = kept.value("repeats_until", int64_t{0});
  else
    message_ = fmt::format("metrics.mlflow: {}: the run {} is not there any more; a new one is made",
                           client_.uri(), kept.value("mlflow_run", ""));
  return found;
}

MlflowRun MlflowSink::make_run() {
  const std::string experiment = client_.experiment_id(options_.experiment);
  // The server may have gone before it could answer.
  if (std::exchange(tried_to_make_, true))
    if (auto found = client_.find_run(experiment, kStartTag, start_)) return *found;
  return client_.create_run(experiment, options_.run_name, unix_milliseconds_now(), tags());
}

RunFacts::Texts MlflowSink::tags() const {
  RunFacts::Texts tags{
      {kStartTag, start_}, {"mlflow.source.name", "lockstep"}, {"mlflow.source.type", "JOB"}};
  for (const auto& [name, value] : facts_.tags) tags.emplace_back("lockstep." + name, value);
  if (const std::string version = tag_of(facts_, "version"); version.find("commit ") != std::string::npos)
    tags.emplace_back("mlflow.source.git.commit", version.substr(version.find("commit ") + 7));
  return tags;
}

/// Params never change. Of a resumed run some may: the server keeps those that the run began with, and the
/// config among the artifacts has the new ones.
void MlflowSink::log_params() {
  RunFacts::Texts missing;
  for (const auto& [name, value] : facts_.fields)
    if (!run_->params.contains(mlflow_key(name))) missing.emplace_back(name, value);
  client_.log_params(run_->id, missing);
}

/// Other mathematics has other numbers. The server's last step is the old one's until the new one has passed
/// it; until then, every part of the run sends what it repeats.
void MlflowSink::find_known_steps() {
  known_ = run_->latest_steps;
  const auto math = run_->tags.find(kMathTag);
  if (math == run_->tags.end() || math->second != tag_of(facts_, "math_hash"))
    for (const auto& [key, step] : known_) repeats_until_ = std::max(repeats_until_, step);
  for (auto& [key, step] : known_)
    if (step <= repeats_until_) step = std::min(step, facts_.resume_step.value_or(0));
}

void MlflowSink::note() const {
  if (facts_.directory.empty()) return;
  nlohmann::json run{{"uri", client_.uri()}, {"mlflow_run", run_->id}, {"run", facts_.run_id}};
  if (repeats_until_ > 0) run["repeats_until"] = repeats_until_;
  replace_file(facts_.directory + "/" + kMlflowFile, run.dump() + "\n");
}

void MlflowSink::open() {
  if (!run_) {
    run_ = old_run();
    if (!run_) run_ = make_run();
    find_known_steps();
  }
  if (!noted_) note();
  noted_ = true;
  client_.set_status(run_->id, "RUNNING", 0);
  client_.set_tags(run_->id, tags());
  log_params();
  send_what_is_missing();
  send_artifact("config.effective.textproto", facts_.config);
}

void MlflowSink::append(const MetricsRecord& record, std::vector<MlflowMetric>& metrics) const {
  for (const auto& metric : record.metrics) {
    const double* number = std::get_if<double>(&metric.value);
    if (number == nullptr) continue;
    std::string key = record.machine ? grouped_name(*record.machine, facts_.several_hosts, metric.name)
                                     : grouped_name(metric.name);
    if (const auto known = known_.find(key); known != known_.end() && record.step <= known->second) continue;
    metrics.push_back(
        {std::move(key), *number, static_cast<int64_t>(1000 * record.unix_seconds), record.step});
  }
}

void MlflowSink::send_what_is_missing() {
  std::vector<MlflowMetric> metrics;
  const auto send = [&] {
    if (!metrics.empty()) client_.log_metrics(run_->id, metrics);
    for (const auto& metric : metrics) known_[metric.key] = metric.step;
    metrics.clear();
  };
  for_each_kept_record(facts_, 0, [&](const MetricsRecord& record) {
    if (metrics.size() + record.metrics.size() > MlflowClient::kMostMetrics) send();
    append(record, metrics);
  });
  send();
}

size_t MlflowSink::write(std::span<const RecordPtr> records) {
  std::vector<MlflowMetric> metrics;
  size_t taken = 0;
  for (; taken < records.size(); ++taken) {
    if (taken > 0 && metrics.size() + records[taken]->metrics.size() > MlflowClient::kMostMetrics) break;
    append(*records[taken], metrics);
  }
  if (!metrics.empty()) client_.log_metrics(run_->id, metrics);
  return taken;
}

void MlflowSink::send_artifact(const std::string& name, const std::string& text) {
  std::string failure;
  try {
    if (client_.put_artifact(*run_, name, text)) return;
    failure = fmt::format("metrics.mlflow: {} does not serve artifacts (it keeps them at {})", client_.uri(),
                          run_->artifact_uri);
  } catch (const IoError& error) {
    failure = error.what();
  }
  if (!std::exchange(lacks_artifacts_, true)) message_ = failure + "; the run goes on without them";
}

void MlflowSink::close(RunEnd end, const std::string& report) {
  constexpr const char* kNames[] = {"FINISHED", "FAILED", "KILLED"};
  client_.set_status(run_->id, kNames[static_cast<size_t>(end)], unix_milliseconds_now());
  if (!report.empty()) send_artifact("report.json", report);
}

std::unique_ptr<Sink> make_mlflow_sink(const MlflowOptions& options, const RunFacts& facts) {
  return std::make_unique<MlflowSink>(options, facts, make_http_client(http_options()));
}

}  // namespace lockstep::observe
