#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "observe/run_report.h"
#include "train/faults/position.h"
#include "train/loop/step_timeline.h"
#include "train/loop/trainer.h"
#include "train/start/world.h"

namespace lockstep::train {

struct RunOptions {
  std::function<config::RunConfig()> load_config;
  std::vector<std::string> config_words;    ///< that name the config in a command, for advice; may be empty
  std::string output_directory;             ///< empty: nothing is written
  std::string trace_directory;              ///< empty: no trace; see train/trace.h
  std::string timeline;                     ///< file for some steps of all ranks; empty: none
  std::optional<StepRange> timeline_steps;  ///< see steps_to_record
  bool quiet = false;
  bool metrics_file_only = false;                  ///< none of the other sinks that the config asks for
  std::string version;                             ///< of the program, for trackers
  DeviceRequest device;                            ///< what to compute on; say() is the run's own
  std::vector<std::string> failpoints;             ///< faults to inject; see train/faults/failpoints.h
  std::string straggler;                           ///< of --straggler; empty: none
  int64_t stop_after = 0;                          ///< save and stop after so many steps; 0: never
  std::function<bool()> stop_requested;            ///< by a signal; may be empty
  std::function<void(const StepRecord&)> on_step;  ///< on every rank; may be empty
};

struct RunResult {
  observe::RunReport report;  ///< the same on all ranks
  bool stopped = false;       ///< before the last step
};

/// One training from config to report: prepares, agrees, restores, trains, evaluates, saves, and on rank 0
/// writes and shows results. `lockstep train` and the public Training share it. Construction and every method
/// are COLLECTIVE unless stated otherwise. If one throws, the training is over: after a CollectiveError all
/// ranks continue; with several ranks any other error ends the job.
class Run {
 public:
  Run(World& world, RunOptions options);
  /// Waits for writes in flight. COLLECTIVE before finish(), unless an error unwinds.
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// See Trainer.
  bool advance();
  std::optional<EvaluationRecord> evaluate();
  void save();
  RunResult finish();
  /// Throws CollectiveError for an unknown name; then the training continues.
  std::vector<float> parameter(const std::string& name);
  void set_parameter(const std::string& name, std::span<const float> values);
  /// Not COLLECTIVE. Throws ConfigError if the training is over.
  const Worker& worker() const;
  int64_t steps() const;
  bool stopped() const;

 private:
  class Parts;
  template <class Action>
  auto guarded(Phase phase, const Action& action);
  Parts& parts() const;
  void end();
  void leave() noexcept;
  int find_parameter(const std::string& name, const std::function<void(int parameter)>& check = {}) const;

  World& world_;
  const int exceptions_ = std::uncaught_exceptions();
  std::unique_ptr<Parts> parts_;  // null if the training is over
};

/// COLLECTIVE: a whole training.
RunResult train_run(World& world, const RunOptions& options);

}  // namespace lockstep::train
