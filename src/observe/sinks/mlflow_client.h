#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "observe/sinks/http_client.h"

namespace lockstep::observe {

/// A run in MLflow.
struct MlflowRun {
  std::string id, experiment_id, artifact_uri;
  std::map<std::string, std::string> params;
  std::map<std::string, int64_t> latest_steps;  ///< of each metric
  std::map<std::string, std::string> tags;
};

struct MlflowMetric {
  std::string key;
  double value = 0;
  int64_t unix_milliseconds = 0;
  int64_t step = 0;
};

/// The part of MLflow's REST interface (version 2.0) that a run needs. Methods throw IoError if the server
/// does not answer, or says that it cannot now; Error if it refuses.
class MlflowClient {
 public:
  using Texts = std::vector<std::pair<std::string, std::string>>;

  /// The most that the server takes at once.
  static constexpr size_t kMostMetrics = 1000, kMostTexts = 100;
  static constexpr size_t kMostParamBytes = 6000, kMostTagBytes = 5000;

  MlflowClient(std::unique_ptr<HttpClient> http, std::string uri);

  /// Makes the experiment if there is none.
  std::string experiment_id(const std::string& name);
  MlflowRun create_run(const std::string& experiment_id, const std::string& name, int64_t unix_milliseconds,
                       const Texts& tags);
  /// Nothing if there is none, or if it was deleted.
  std::optional<MlflowRun> find_run(const std::string& id);
  /// The run with this tag; nothing if there is none.
  std::optional<MlflowRun> find_run(const std::string& experiment_id, const std::string& tag,
                                    const std::string& value);
  /// REQUIRES: at most kMostMetrics.
  void log_metrics(const std::string& run, const std::vector<MlflowMetric>& metrics);
  /// In as many batches as it takes. Values that are too long are cut.
  void log_params(const std::string& run, const Texts& params);
  void set_tags(const std::string& run, const Texts& tags);
  /// `status`: RUNNING, FINISHED, FAILED, KILLED. `end`: Unix milliseconds; 0: it has not ended.
  void set_status(const std::string& run, const std::string& status, int64_t end);
  /// False if the server keeps artifacts where only its own clients write them.
  bool put_artifact(const MlflowRun& run, const std::string& name, const std::string& text);

  const std::string& uri() const { return uri_; }

 private:
  struct Answer;
  /// Throws IoError that names the server.
  HttpReply send(const HttpRequest& request);
  /// `may_be_missing`: returns, too, if the server says that there is no such thing, or that there is one
  /// already.
  Answer call(const std::string& method, const std::string& path, const std::string& body,
              bool may_be_missing = false);
  /// What `action` reads from answers. Throws Error if they are not those of MLflow.
  template <class Action>
  auto read(const Action& action) const;
  [[noreturn]] void refuse_answer() const;
  void log_batches(const std::string& run, const char* kind, const Texts& texts, size_t most_bytes);

  std::unique_ptr<HttpClient> http_;
  std::string uri_;
};

/// A key as MLflow takes it: "model.layer[0].name" becomes "model.layer.0.name".
std::string mlflow_key(const std::string& name);

}  // namespace lockstep::observe
