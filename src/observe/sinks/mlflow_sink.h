#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "observe/metrics_options.h"
#include "observe/sinks/mlflow_client.h"
#include "observe/sinks/sink.h"

namespace lockstep::observe {

inline constexpr const char* kMlflowFile =
    "mlflow.json";  ///< in the folder of a run: which run of MLflow it is

/// A run in MLflow's tracking server. A resumed run goes on under its old id: what the server has is not sent
/// again, and what it lacks, because it was away, is read from metrics.jsonl.
class MlflowSink : public Sink {
 public:
  MlflowSink(const MlflowOptions& options, RunFacts facts, std::unique_ptr<HttpClient> http);

  void open() override;
  size_t write(std::span<const RecordPtr> records) override;
  void close(RunEnd end, const std::string& report) override;
  std::string take_message() override { return std::exchange(message_, {}); }

 private:
  std::optional<MlflowRun> old_run();
  MlflowRun make_run();
  void find_known_steps();
  void note() const;
  RunFacts::Texts tags() const;
  void log_params();
  void send_what_is_missing();
  /// If it fails, the run goes on without, and people are told once.
  void send_artifact(const std::string& name, const std::string& text);
  /// Metrics of `record` that the server lacks.
  void append(const MetricsRecord& record, std::vector<MlflowMetric>& metrics) const;

  MlflowOptions options_;
  RunFacts facts_;
  MlflowClient client_;
  std::string start_;  // tells a run that was made, unheard, from those of others
  bool tried_to_make_ = false;
  bool noted_ = false;            // in kMlflowFile
  bool lacks_artifacts_ = false;  // and people know
  int64_t repeats_until_ = 0;     // the last step of which the server has numbers of other mathematics
  std::optional<MlflowRun> run_;
  std::map<std::string, int64_t> known_;  // the last step that the server has, by name
  std::string message_;
};

std::unique_ptr<Sink> make_mlflow_sink(const MlflowOptions& options, const RunFacts& facts);

}  // namespace lockstep::observe
