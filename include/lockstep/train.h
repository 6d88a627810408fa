#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/model.h"

namespace lockstep {

/// One step, as a watcher sees it.
struct TrainingStep {
  int64_t step = 0;  ///< steps complete, counted from 1
  double loss = 0;   ///< mean over the global batch
  double learning_rate = 0;
  double gradient_norm = 0;  ///< before clipping
};

struct TrainingOptions {
  std::vector<std::string> overrides;  ///< "path=value", applied to the config in order, as --set
  std::string output_directory;  ///< metrics, effective config and checkpoints; empty: nothing is written
  bool quiet = false;            ///< nothing on stderr but warnings and errors
  std::function<void(const TrainingStep&)> on_step;  ///< called on every rank; may be empty
};

/// The same on all ranks.
struct TrainingSummary {
  int64_t steps = 0;
  double epochs = 0;
  double train_loss = 0;  ///< of the last step
  std::optional<double> eval_loss;
  std::optional<double> eval_accuracy;  ///< of classifiers, from 0 to 1
  double samples_per_second = 0;
  std::string parameters_hash;  ///< 16 hex digits: equal for equal bits of all parameters
  bool stopped =
      false;  ///< by a request (SIGUSR1; of one process also SIGTERM, SIGINT), saved in output_directory
};

/// The processes that train together: those that mpirun started, or this one alone.
class Job {
 public:
  virtual ~Job() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// COLLECTIVE: trains `model`. `config` is the text of a config without its model (docs/config.md); file
  /// names in it are relative to data.directory. Every rank passes the same model, config and overrides, or
  /// all throw. May be called several times, one after the other.
  virtual TrainingSummary train(const ModelSpec& model, const std::string& config,
                                const TrainingOptions& options = {}) = 0;
};

/// Runs `body` as one rank of a job; for main, once per process:
///
///     int main() {
///       return lockstep::run_job([](lockstep::Job& job) { job.train(my_model(), my_config()); });
///     }
///
/// Until it returns, signals ask trainings to stop: train() then returns early, and says so.
/// Returns the exit code: 0; 143 or 130 where a training was stopped by request; or that of what `body` threw
/// (lockstep/error.h), which is printed once; where one rank fails alone the whole job is ended, so that no
/// other waits for it.
int run_job(const std::function<void(Job&)>& body);

}  // namespace lockstep
