#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/statistics.h"
#include "comm/communicator.h"
#include "model/node_times.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// Collects what kernels take (TrainerRunOptions::observer) while a rank trains: times of what its programs
/// compute of a micro-batch, and of updates. What is computed again, for backward, counts as little as
/// loading, sums and messages.
class Profiler {
 public:
  /// `worker` must outlive it. The first `warm_up_steps` are not counted.
  Profiler(const Worker& worker, int64_t warm_up_steps);

  void observe(const run::KernelObservation& observation);
  /// After each step. One that was skipped updated nothing, however long that took. `busy_ms`: in which this
  /// rank computed, where that is known.
  void end_step(bool skipped, std::optional<double> busy_ms = {});
  /// Steps that were measured, and applied.
  int64_t updates() const { return static_cast<int64_t>(updates_.size()); }
  /// COLLECTIVE: medians of each rank; of what several ranks compute the mean of theirs. The same everywhere.
  /// `source` stays empty.
  model::Profile result(comm::Communicator& world) const;
  /// Seconds of a step in which this rank computed something else than layers and updates: the median; 0
  /// where it is not known.
  double rest() const { return median(rests_); }

 private:
  struct Samples {
    std::vector<double> forward, backward_input, backward_weight;  ///< seconds
  };

  const Worker& worker_;
  int64_t steps_to_skip_;
  std::vector<Samples> nodes_;
  std::vector<double> updates_;  ///< seconds of a step
  std::vector<double> rests_;    ///< likewise, of everything else
  double update_ = 0;            ///< so far in this step
  double kernels_ = 0;           ///< likewise, of everything that was observed
};

}  // namespace lockstep::train
