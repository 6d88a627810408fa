#include "observe/sinks/mlflow_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/error.h"

namespace lockstep::observe {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostKeyBytes = 250;

/// At most so many bytes, and no part of a character.
std::string cut_text(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

/// JSON has no such numbers; the server reads these texts.
Json metric_value(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}

Json texts_json(const MlflowClient::Texts& texts, size_t most_bytes) {
  Json all = Json::array();
  for (const auto& [key, value] : texts)
    all.push_back({{"key", mlflow_key(key)}, {"value", cut_text(value, most_bytes)}});
  return all;
}

std::string dumped(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// Numbers of 64 bits come as texts.
int64_t whole_number(const Json& json) {
  const Json number = json.is_string() ? Json::parse(json.get<std::string>()) : json;
  // A number with a point may be beyond all whole ones.
  if (!number.is_number_integer()) throw Json::type_error::create(302, "expected a whole number", &number);
  return number.get<int64_t>();
}

/// "" if it is no text: servers also say null.
std::string text_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

MlflowRun run_of(const Json& json) {
  const Json& info = json.at("info");
  MlflowRun run{.id = info.at("run_id"),
                .experiment_id = info.at("experiment_id"),
                .artifact_uri = text_of(info, "artifact_uri"),
                .params = {},
                .latest_steps = {},
                .tags = {}};
  const Json data = json.value("data", Json::object());
  for (const auto& param : data.value("params", Json::array()))
    run.params[param.at("key")] = param.at("value");
  for (const auto& tag : data.value("tags", Json::array())) run.tags[tag.at("key")] = text_of(tag, "value");
  for (const auto& metric : data.value("metrics", Json::array()))
    run.latest_steps[metric.at("key")] = metric.contains("step") ? whole_number(metric["step"]) : 0;
  return run;
}

}  // namespace

struct MlflowClient::Answer {
  int status;
  Json json;
  std::string code;  // of an error

  bool is_missing() const { return status == 404 && code == "RESOURCE_DOES_NOT_EXIST"; }
};

std::string mlflow_key(const std::string& name) {
  std::string key;
  for (const char c : name) {
    const bool allowed = std::isalnum(static_cast<unsigned char>(c)) ||
                         std::string_view("/_.- ").find(c) != std::string_view::npos;
    if (allowed)
      key += c;
    else if (c != ']')
      key += c == '[' ? '.' : '_';
  }
  return cut_text(key, kMostKeyBytes);
}

MlflowClient::MlflowClient(std::unique_ptr<HttpClient> http, std::string uri)
    : http_(std::move(http)), uri_(std::move(uri)) {
  while (uri_.ends_with('/')) uri_.pop_back();
}

void MlflowClient::refuse_answer() const {
  throw Error(fmt::format("metrics.mlflow: {}: answers, but not as a tracking server of MLflow does", uri_),
              ExitCode::usage);
}

template <class Action>
auto MlflowClient::read(const Action& action) const {
  try {
    return action();
  } catch (const Json::exception&) {
    refuse_answer();
  }
}

HttpReply MlflowClient::send(const HttpRequest& request) {
  try {
    return http_->send(request);
  } catch (const IoError& error) {
    throw IoError(fmt::format("metrics.mlflow: {}: {}", uri_, error.what()));
  }
}

MlflowClient::Answer MlflowClient::call(const std::string& method, const std::string& path,
                                        const std::string& body, bool may_be_missing) {
  const HttpReply reply =
      send({method, uri_ + "/api/2.0/mlflow/" + path, body.empty() ? "" : "application/json", body});
  Answer answer{reply.status, Json::parse(reply.body, nullptr, /*allow_exceptions=*/false), ""};
  if (reply.status == 200 && answer.json.is_object()) return answer;
  std::string reason = fmt::format("status {}", reply.status);
  if (answer.json.is_object()) {
    answer.code = text_of(answer.json, "error_code");
    reason += fmt::format(", {} ({})", answer.code, cut_text(text_of(answer.json, "message"), 300));
  } else if (reply.status == 200) {
    refuse_answer();
  }
  const std::string message =
      fmt::format("metrics.mlflow: {}: {}: {}", uri_, path.substr(0, path.find('?')), reason);
  // Whoever is overloaded, or starts, may have time later.
  if (reply.status == 408 || reply.status == 429 || reply.status >= 500) throw IoError(message);
  if (may_be_missing && (answer.is_missing() || answer.code == "RESOURCE_ALREADY_EXISTS")) return answer;
  throw Error(message, ExitCode::usage);
}

std::string MlflowClient::experiment_id(const std::string& name) {
  const std::string query = "experiments/get-by-name?experiment_name=" + url_escaped(name);
  return read([&]() -> std::string {
    Answer found = call("GET", query, "", /*may_be_missing=*/true);
    if (found.is_missing()) {
      const Answer made =
          call("POST", "experiments/create", dumped({{"name", name}}), /*may_be_missing=*/true);
      if (made.code.empty()) return made.json.at("experiment_id");
      found = call("GET", query, "");  // somebody else has just made it
    }
    const Json& experiment = found.json.at("experiment");
    if (experiment.value("lifecycle_stage", "active") != "active")
      throw Error(
          fmt::format("metrics.mlflow: {}: the experiment '{}' was deleted; restore it or name another one",
                      uri_, name),
          ExitCode::usage);
    return experiment.at("experiment_id");
  });
}

MlflowRun MlflowClient::create_run(const std::string& experiment_id, const std::string& name,
                                   int64_t unix_milliseconds, const Texts& tags) {
  const Json body{{"experiment_id", experiment_id},
                  {"run_name", name},
                  {"start_time", unix_milliseconds},
                  {"tags", texts_json(tags, kMostTagBytes)}};
  return read([&] { return run_of(call("POST", "runs/create", dumped(body)).json.at("run")); });
}

std::optional<MlflowRun> MlflowClient::find_run(const std::string& id) {
  return read([&]() -> std::optional<MlflowRun> {
    const Answer found = call("GET", "runs/get?run_id=" + url_escaped(id), "", /*may_be_missing=*/true);
    if (found.is_missing()) return std::nullopt;
    const Json& run = found.json.at("run");
    if (run.at("info").value("lifecycle_stage", "active") != "active") return std::nullopt;
    return run_of(run);
  });
}

std::optional<MlflowRun> MlflowClient::find_run(const std::string& experiment_id, const std::string& tag,
                                                const std::string& value) {
  const Json body{{"experiment_ids", {experiment_id}},
                  {"filter", fmt::format("tags.`{}` = '{}'", tag, value)},
                  {"max_results", 1}};
  return read([&]() -> std::optional<MlflowRun> {
    const Json runs = call("POST", "runs/search", dumped(body)).json.value("runs", Json::array());
    if (runs.empty()) return std::nullopt;
    return run_of(runs.at(0));
  });
}

void MlflowClient::log_metrics(const std::string& run, const std::vector<MlflowMetric>& metrics) {
  Json all = Json::array();
  for (const auto& metric : metrics)
    all.push_back({{"key", mlflow_key(metric.key)},
                   {"value", metric_value(metric.value)},
                   {"timestamp", metric.unix_milliseconds},
                   {"step", metric.step}});
  call("POST", "runs/log-batch", dumped({{"run_id", run}, {"metrics", all}}));
}

void MlflowClient::log_batches(const std::string& run, const char* kind, const Texts& texts,
                               size_t most_bytes) {
  for (size_t begin = 0; begin < texts.size(); begin += kMostTexts) {
    const auto first = texts.begin() + static_cast<std::ptrdiff_t>(begin);
    const size_t count = std::min(kMostTexts, texts.size() - begin);
    const Json all = texts_json(Texts(first, first + static_cast<std::ptrdiff_t>(count)), most_bytes);
    call("POST", "runs/log-batch", dumped({{"run_id", run}, {kind, all}}));
  }
}

void MlflowClient::log_params(const std::string& run, const Texts& params) {
  log_batches(run, "params", params, kMostParamBytes);
}

void MlflowClient::set_tags(const std::string& run, const Texts& tags) {
  log_batches(run, "tags", tags, kMostTagBytes);
}

void MlflowClient::set_status(const std::string& run, const std::string& status, int64_t end) {
  Json body{{"run_id", run}, {"status", status}};
  if (end > 0) body["end_time"] = end;
  call("POST", "runs/update", dumped(body));
}

bool MlflowClient::put_artifact(const MlflowRun& run, const std::string& name, const std::string& text) {
  // "mlflow-artifacts:/0/ID/artifacts", or with a host between: kept by the server itself.
  constexpr std::string_view kScheme = "mlflow-artifacts:";
  if (!run.artifact_uri.starts_with(kScheme)) return false;
  std::string_view path = std::string_view(run.artifact_uri).substr(kScheme.size());
  if (path.starts_with("//")) path = path.substr(std::min(path.size(), path.find('/', 2)));
  while (path.starts_with('/')) path.remove_prefix(1);
  const HttpReply reply = send({"PUT",
                                fmt::format("{}/api/2.0/mlflow-artifacts/artifacts/{}/{}", uri_,
                                            url_escaped(std::string(path)), url_escaped(name)),
                                "application/octet-stream", text});
  if (reply.status >= 500)
    throw IoError(fmt::format("metrics.mlflow: {}: status {} for the artifact {}", uri_, reply.status, name));
  return reply.status == 200;
}

}  // namespace lockstep::observe
