#pragma once

#include <functional>
#include <vector>

#include "compile/compiled_run.h"
#include "plan/program_timeline.h"

namespace lockstep::plan {

/// Measured times of messages between two ranks, in seconds. 0: unknown.
struct MessageFigures {
  double latency = 0;             ///< from rank to rank
  double one_way_per_byte = 0;    ///< of a long message
  double both_ways_per_byte = 0;  ///< per byte each way, for two long messages in opposite directions
  bool operator==(const MessageFigures&) const = default;
};

/// Measured times on the machines of a job, in seconds.
struct MachineFigures {
  MessageFigures within_host, between_hosts;
  /// Between the same hosts without a limit on their link, if known.
  MessageFigures free_link;
  double shared_meeting = 0;       ///< of a sum of one number in memory that all ranks share
  double shared_sum_per_byte = 0;  ///< of a long one
  int shared_ranks = 0;            ///< with so many ranks
  double addition_per_byte = 0;    ///< of adding an array in memory to another
  double link_burst_bytes = 0;     ///< see CommunicationTimes; known, not measured
  bool operator==(const MachineFigures&) const = default;
};

/// The times of programs that follow from the figures. Two messages in opposite directions take as long as
/// one if the link is the limit, and twice as long if the threads at its ends are, which handle both. For a
/// limited link, the handling is that of the link without a limit or, if unknown, that of messages within a
/// host.
CommunicationTimes communication_times(const MachineFigures& figures);

struct StepCosts {
  model::Profile profile;            ///< of the run's model, on CPUs
  CommunicationTimes communication;  ///< in seconds
  double addition_per_byte = 0;
  double overhead = 0;  ///< time of a worker's step besides its instructions
};

/// Estimated seconds of a step for instructions of rank 0 that neither communicate, nor compute layers, nor
/// update or propose updates: by the bytes that they process.
double other_seconds(const compile::CompiledRun& run, const StepCosts& costs);

/// Seconds of a step of all workers in the long run. It replays the programs of all ranks (plan::replay) with
/// measured times. Programs of sessions do not determine when ranks meet. In sessions each worker pulls,
/// computes and pushes, as its program says, and begins again. With mode=stale a step takes as long as the
/// slowest worker, server or link. With mode=async workers repeat this as often as they can, and as servers
/// and links allow. For ranks on CPUs with a core each. `hosts`: each rank's host. Throws ConfigError if the
/// profile is of another model. `gets_on` (may be empty) is called between the ranks' programs; what it
/// throws ends the prediction.
double predict_step(const compile::CompiledRun& run, const std::vector<int>& hosts, const StepCosts& costs,
                    const std::function<void()>& gets_on = {});

}  // namespace lockstep::plan
