#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace lockstep::observe {

/// What becomes of a run if one of its sinks fails.
enum class SinkFailurePolicy { go_on, stop };

/// A tracking server of MLflow.
struct MlflowOptions {
  std::string uri;         ///< "http://host:5000"
  std::string experiment;  ///< made if there is none of that name
  std::string run_name;    ///< empty: that of the run's folder
  bool operator==(const MlflowOptions&) const = default;
};

struct MetricsOptions {
  int64_t log_every_steps = 1;                              ///< lines in metrics.jsonl
  bool progress = true;                                     ///< the progress line on stderr
  SinkFailurePolicy on_failure = SinkFailurePolicy::go_on;  ///< of all sinks but metrics.jsonl
  int64_t histogram_every_steps = 0;                        ///< of parameters and gradients; 0: none
  int64_t noise_scale_every_steps = 0;                      ///< between measured steps; 0: none
  double machine_every_seconds = 5;                         ///< between figures of machines; 0: none
  bool tensorboard = true;                                  ///< if the run has a folder
  int prometheus_port = 0;                                  ///< 0: none
  std::string prometheus_address = "127.0.0.1";
  std::optional<MlflowOptions> mlflow;
  bool operator==(const MetricsOptions&) const = default;
};

}  // namespace lockstep::observe
