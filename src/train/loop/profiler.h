#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/statistics.h"
#include "comm/communicator.h"
#include "model/node_times.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// COLLECTIVE: a profile of the times that each rank has measured; if several ranks compute a layer, their
/// mean. The same on all ranks. `own`: by node, of a micro-batch, 0 if this rank does not compute it;
/// `update_seconds`: for each element that this rank updates, 0 if there is none. `source` stays empty.
model::Profile gather_profile(const Worker& worker, comm::Communicator& world, double update_seconds,
                              const std::vector<model::NodeTime>& own);

/// Collects the times of kernels (TrainerRunOptions::observer) while a rank trains: times per micro-batch of
/// what its programs compute, and of updates. Recomputation, loading, sums and messages do not count.
class Profiler {
 public:
  /// `worker` must outlive it. The first `warm_up_steps` are not counted.
  Profiler(const Worker& worker, int64_t warm_up_steps);

  void observe(const run::KernelObservation& observation);
  /// Call it after each step. A skipped step counts as no update. `busy_ms`: the time in which this rank
  /// computed, if known.
  void end_step(bool skipped, std::optional<double> busy_ms = {});
  /// Steps that were measured, and applied.
  int64_t updates() const { return static_cast<int64_t>(updates_.size()); }
  /// COLLECTIVE: medians of each rank; if several ranks compute a layer, the mean of their medians. The same
  /// on all ranks. `source` stays empty.
  model::Profile result(comm::Communicator& world) const;
  /// The median of the seconds of a step in which this rank computed something other than layers and updates;
  /// 0 if not known.
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
