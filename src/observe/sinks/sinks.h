#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "observe/metrics_options.h"
#include "observe/sinks/sink.h"
#include "observe/sinks/sink_thread.h"

namespace lockstep::observe {

/// A kind of sink: a line of the table in sink_table.cpp.
struct SinkKind {
  /// Whether a run has one.
  bool (*wanted)(const MetricsOptions& options, const RunFacts& facts);
  std::unique_ptr<Sink> (*make)(const MetricsOptions& options, const RunFacts& facts);
  SinkPolicy policy;  ///< ends_run is the config's
};
std::span<const SinkKind> sink_kinds();
/// Whether a run has any.
bool has_sinks(const MetricsOptions& options, const RunFacts& facts);

/// All sinks of a run, in the order of the table. Used by one thread, which they never keep waiting unless
/// stated, and by others only if stated. What they have to say is logged by that thread.
class Sinks {
 public:
  /// `stop_without_essential`: checkpoint.on_failure is STOP. For all others metrics.on_failure counts.
  Sinks(const MetricsOptions& options, const RunFacts& facts, bool stop_without_essential);
  /// Those of somebody else's making.
  explicit Sinks(std::vector<std::unique_ptr<SinkThread>> threads) : threads_(std::move(threads)) {}

  /// Opens them, one after the other, waiting for each. Throws IoError or ConfigError if the run must not
  /// begin without one.
  void open();
  /// Throws what failed before, if that ends the run.
  void write(MetricsRecord record);
  /// Likewise, from another thread, while this is open. What failed before is for write() to throw.
  void write_beside(MetricsRecord record);
  /// Waits until essential sinks have everything on disk, so that no checkpoint is newer than its metrics.
  void sync();
  /// Writes everything, and closes essential sinks. Throws IoError for whatever must not be missing.
  void finish();
  /// Closes all sinks that are open, waiting for each at most so long (0: as its policy says).
  void close(RunEnd end, const std::string& report, std::chrono::milliseconds patience = {}) noexcept;

  /// Likewise, as of a run that failed, but silently: for another thread, when the one that uses the sinks
  /// may be stuck.
  void abandon(std::chrono::milliseconds patience) noexcept;

  bool empty() const { return threads_.empty(); }

 private:
  void log_messages() noexcept;
  std::vector<std::unique_ptr<SinkThread>> threads_;
};

}  // namespace lockstep::observe
