#pragma once

#include <memory>
#include <optional>
#include <string>

#include "observe/metrics_writer.h"
#include "observe/progress.h"
#include "train/trainer.h"

namespace lockstep {

struct RunOutputOptions {
  std::string directory;  ///< of the run; empty: no files
  bool quiet = false;     ///< nothing for people but warnings and errors
};

/// What rank 0 shows on stderr and writes into the run's folder while it trains: the progress line, messages,
/// metrics.jsonl and config.effective.textproto.
class RunOutput {
 public:
  /// `worker` must outlive it.
  RunOutput(const RunOutputOptions& options, Worker& worker);
  ~RunOutput();
  RunOutput(const RunOutput&) = delete;
  RunOutput& operator=(const RunOutput&) = delete;

  /// Throws ConfigError where the run's folder holds a run that this one, by its config, does not go on with:
  /// nothing that is there is ever replaced.
  static void check_directory(const std::string& directory, const RunConfig& config);
  /// What this run is: workers, batch, data, memory.
  void show_start();
  /// Makes the folder and its files, and draws the progress line from `first_step` on. Throws IoError.
  void open(int64_t first_step);

  void message(const std::string& text);
  void step(const StepRecord& record);
  void evaluation(const EvaluationRecord& record);
  void checkpoint(int64_t step, const std::string& path);
  /// Ends the progress line and makes sure that all metrics are on the disk.
  void finish();

 private:
  RunOutputOptions options_;
  Worker& worker_;
  std::optional<ProgressLine> progress_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::optional<int64_t> resumed_at_;
};

}  // namespace lockstep
