#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "config/run_config.h"
#include "train/loop/trainer.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// What one rank's training ended with.
struct EndedRank {
  TrainingOutcome outcome;
  std::vector<StepRecord> records;
  uint64_t parameters_hash = 0, state_hash = 0;
  comm::TransferredBytes transferred;
};

struct SessionRanksOptions {
  std::string folder;
  int64_t stop_after = 0;
  std::function<bool(int rank)> stop_requested;
  std::function<void(int rank, const program::Program&, uint64_t iteration, int instruction)> before;
  /// Makes a gradient of these steps, from 0, no number.
  std::vector<uint64_t> spoiled = {};
  device::DeviceKind device = device::DeviceKind::cpu;
  bool watched = false;  ///< ranks tell where they are, as for a watchdog; nobody listens
};

/// Trains on threads, each of which is a rank; what they end with, after checking that all agree on the
/// steps, and those with a replica on its bits, and that each took the memory that was planned.
std::vector<EndedRank> train_sessions(const config::RunConfig& config, const std::string& layout,
                                      const SessionRanksOptions& options = {});

}  // namespace lockstep::train
