#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "observe/run_report.h"
#include "train/loop/trainer.h"
#include "train/start/world.h"

namespace lockstep::train {

struct SessionOptions {
  std::function<config::RunConfig()> load_config;
  std::string output_directory;  ///< empty: nothing is written
  std::string trace_directory;   ///< empty: no trace; see train/trace.h
  bool quiet = false;
  DeviceRequest device;                  ///< what to compute on; say() is the session's own
  std::vector<std::string> failpoints;   ///< faults that the run inflicts on itself; see train/failpoints.h
  std::string straggler;                 ///< of --straggler; empty: none
  int64_t stop_after = 0;                ///< 0: no; otherwise save and stop once so many steps are complete
  std::function<bool()> stop_requested;  ///< by a signal; may be empty
  std::function<void(const StepRecord&)> on_step;  ///< on every rank; may be empty
};

struct SessionResult {
  observe::RunReport report;  ///< the same on all ranks
  bool stopped = false;       ///< before the last step
};

/// COLLECTIVE: one training from config to report: prepares and agrees, restores, trains, evaluates, saves,
/// and writes and shows on rank 0 what there is to see. What `lockstep train` and the public train() share.
SessionResult train_session(World& world, const SessionOptions& options);

}  // namespace lockstep::train
