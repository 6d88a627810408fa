#include <chrono>
#include <vector>

#include "observe/sinks/jsonl_sink.h"
#include "observe/sinks/mlflow_sink.h"
#include "observe/sinks/prometheus_sink.h"
#include "observe/sinks/sinks.h"
#include "observe/sinks/tensorboard_sink.h"

namespace lockstep::observe {
namespace {

bool has_directory(const MetricsOptions&, const RunFacts& facts) { return !facts.directory.empty(); }

std::unique_ptr<Sink> make_jsonl(const MetricsOptions&, const RunFacts& facts) {
  return std::make_unique<JsonlSink>(facts.directory + "/" + kMetricsFile, facts.resume_step);
}

bool wants_tensorboard(const MetricsOptions& options, const RunFacts& facts) {
  return options.tensorboard && has_directory(options, facts);
}

std::unique_ptr<Sink> make_tensorboard(const MetricsOptions&, const RunFacts& facts) {
  return std::make_unique<TensorboardSink>(facts);
}

bool wants_prometheus(const MetricsOptions& options, const RunFacts&) { return options.prometheus_port > 0; }

std::unique_ptr<Sink> make_prometheus(const MetricsOptions& options, const RunFacts& facts) {
  return std::make_unique<PrometheusSink>(facts, options.prometheus_address, options.prometheus_port);
}

bool wants_mlflow(const MetricsOptions& options, const RunFacts&) { return options.mlflow.has_value(); }

std::unique_ptr<Sink> make_mlflow(const MetricsOptions& options, const RunFacts& facts) {
  return make_mlflow_sink(*options.mlflow, facts);
}

}  // namespace

std::span<const SinkKind> sink_kinds() {
  // Opened in this order: later sinks may read what the first one holds.
  using std::chrono::milliseconds, std::chrono::seconds;
  static const std::vector<SinkKind> kinds{
      {has_directory, make_jsonl, {.name = kMetricsFile, .essential = true, .retry = seconds(1)}},
      {wants_tensorboard,
       make_tensorboard,
       {.name = "metrics.tensorboard",
        .gather = milliseconds(500),
        .patience = seconds(5),
        .farewell = seconds(5)}},
      {wants_prometheus,
       make_prometheus,
       {.name = "metrics.prometheus_port",
        .serves_page = true,
        .gather = milliseconds(200),
        .patience = seconds(5),
        .farewell = seconds(1)}},
      {wants_mlflow,
       make_mlflow,
       {.name = "metrics.mlflow", .gather = seconds(1), .patience = seconds(5), .farewell = seconds(5)}},
  };
  return kinds;
}

}  // namespace lockstep::observe
