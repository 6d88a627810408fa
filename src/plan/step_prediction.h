#pragma once

#include <vector>

#include "compile/compiled_run.h"
#include "plan/program_timeline.h"

namespace lockstep::plan {

/// What was measured of messages between two ranks, in seconds. 0: unknown.
struct MessageFigures {
  double latency = 0;             ///< from rank to rank
  double one_way_per_byte = 0;    ///< of a long message
  double both_ways_per_byte = 0;  ///< of a byte each way, of two long messages that pass each other
  bool operator==(const MessageFigures&) const = default;
};

/// What was measured where a job is to run, in seconds.
struct MachineFigures {
  MessageFigures within_host, between_hosts;
  /// Between the same hosts where nothing limits their link; where it is known.
  MessageFigures free_link;
  double shared_meeting = 0;       ///< of a sum of one number in memory that all ranks share
  double shared_sum_per_byte = 0;  ///< of a long one
  int shared_ranks = 0;            ///< with so many ranks
  double addition_per_byte = 0;    ///< of adding an array in memory to another
  double link_burst_bytes = 0;     ///< see CommunicationTimes; known, not measured
  bool operator==(const MachineFigures&) const = default;
};

/// What follows for programs. Two messages that pass each other take as long as one where the link decides;
/// where the threads at its ends decide, that handle both, twice as long. Of a limited link the handling is
/// that of the free one or, where that is not known, what messages take within a host.
CommunicationTimes communication_times(const MachineFigures& figures);

struct StepCosts {
  model::Profile profile;            ///< of the run's model, on CPUs
  CommunicationTimes communication;  ///< in seconds
  double addition_per_byte = 0;
  double overhead = 0;  ///< of a step of a worker beside its instructions
};

/// Seconds of a step that instructions of rank 0 are reckoned to take that neither communicate, nor compute
/// layers, nor update: by the bytes that they pass over.
double other_seconds(const compile::CompiledRun& run, const StepCosts& costs);

/// Seconds of a step of all workers, in the long run: of the programs of all ranks, replayed (plan::replay)
/// with what was measured. Programs of sessions do not say who meets whom when. Each worker
/// pulls, computes and pushes, as its program has it, and begins again: with mode=stale a step takes as long
/// as the slowest of them, or a server, or a link; with mode=async all do it as often as they can, and as
/// servers and links allow. For ranks on CPUs that have a core each. `hosts`: of each rank. Throws
/// ConfigError where the profile is of another model.
double predict_step(const compile::CompiledRun& run, const std::vector<int>& hosts, const StepCosts& costs);

}  // namespace lockstep::plan
