#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "base/file_system.h"
#include "observe/progress.h"
#include "observe/sinks/sinks.h"
#include "train/loop/trainer.h"

namespace lockstep::train {

struct RunOutputOptions {
  std::string directory;           ///< of the run; empty: no files
  bool quiet = false;              ///< nothing for people but warnings and errors
  bool metrics_file_only = false;  ///< none of the other sinks that the config asks for
  std::string version;             ///< of the program, for trackers
};

/// A lock on a folder, as long as this lives and this process does. Move-only by unique_ptr.
class DirectoryLock {
 public:
  /// Throws ConfigError if another process holds it, IoError if the folder cannot be made or locked.
  /// A folder that it makes is durable, so that checkpoints below it survive a power failure.
  explicit DirectoryLock(const std::string& directory, FileSystem& files = posix_file_system());
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// The sinks that a run has: those of its config, or only metrics.jsonl.
observe::MetricsOptions metrics_of(const RunOutputOptions& options, const config::RunConfig& config);
/// How often the run samples machines, in seconds, and whether any sink wants to know. Alike on all ranks.
/// Trials by other commands do not.
struct MachineWishes {
  double every_seconds = 0;
  bool has_sinks = false;
};
MachineWishes machine_wishes(const RunOutputOptions& options, const config::RunConfig& config);

/// Rank 0's output while it trains: the progress line and messages on stderr, config.effective.textproto in
/// the run's folder, and metrics for all sinks.
class RunOutput {
 public:
  /// `worker` must outlive it.
  RunOutput(const RunOutputOptions& options, Worker& worker);
  ~RunOutput();
  RunOutput(const RunOutput&) = delete;
  RunOutput& operator=(const RunOutput&) = delete;

  /// Makes the run's folder and keeps other processes out of it until the result is destroyed. Throws
  /// ConfigError if another process writes there, or if the folder holds a run that this run's config does
  /// not resume: existing files are never replaced. Nothing for an empty name.
  static std::unique_ptr<DirectoryLock> claim_directory(const std::string& directory,
                                                        const config::RunConfig& config);
  /// Describes this run in a few lines: workers, batch, data, memory; in more detail at LogLevel::debug.
  void show_start();
  /// Makes the folder and its files, opens the sinks, and draws the progress line from `first_step` on.
  /// `run_id`: of this run and what it resumes. Throws IoError or ConfigError.
  /// `several_hosts`: whether the run's processes are on more than one.
  void open(int64_t first_step, const std::string& run_id, bool several_hosts);

  /// After other ranks were lost: from here on the run is `worker`'s.
  void follow(Worker& worker);

  void message(const std::string& text);
  void step(const StepRecord& record);
  void evaluation(const EvaluationRecord& record);
  /// What the model wrote after a step.
  void text(int64_t step, const std::string& text);
  /// The gradient noise scale, as measured up to a step.
  void noise_scale(int64_t step, double scale);
  /// Of parameters and gradients.
  void histograms(observe::MetricsRecord record) { sinks_->write(std::move(record)); }
  /// Of a machine. From any thread, between open() and close().
  void machine(observe::MetricsRecord record) { sinks_->write_beside(std::move(record)); }
  /// Makes metrics durable, so that no checkpoint is newer than its metrics, unless the run continues without
  /// what it cannot write. Throws IoError.
  void before_checkpoint();
  void checkpoint(int64_t step, const std::string& path);
  /// Ends the progress line and makes sure that all metrics are on disk. Throws IoError under any policy.
  void finish();
  /// Tells the sinks how the run ends, and writes report.json and report.html. `report`: its JSON, or empty.
  /// Waits at most so long for each (0: as long as the sink's policy says). Without it, the run has failed.
  void close(observe::RunEnd end, const std::string& report,
             std::chrono::milliseconds patience = {}) noexcept;

  /// Likewise, as of a run that failed, but silently and from another thread. Not together with close().
  void abandon(std::chrono::milliseconds patience) noexcept {
    if (sinks_) sinks_->abandon(patience);
  }

 private:
  void write_report(const std::string& report) const noexcept;
  std::string describe_memory(bool verbose) const;
  observe::RunFacts facts(int64_t first_step, const std::string& run_id) const;

  RunOutputOptions options_;
  Worker* worker_;
  std::string layout_;  // for people and metrics
  std::optional<observe::ProgressLine> progress_;
  std::optional<observe::Sinks> sinks_;
  std::optional<int64_t> resumed_at_;
  bool evaluated_then_ = false;  // metrics hold an evaluation of that step
  bool is_complete_ = false;     // before this start
};

}  // namespace lockstep::train
