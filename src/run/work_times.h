#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "model/node_times.h"
#include "program/program.h"

namespace lockstep::run {

/// Where the time of an executor's thread went, over all iterations so far, in ms. No two parts overlap.
struct WorkTimes {
  /// By node of the graph: its kernels. What is computed again counts as forward.
  std::vector<model::NodeTime> nodes_ms;
  /// By kind: instructions of compute and copy lanes that run no segment.
  std::array<double, program::kInstructionKindCount> kinds_ms{};
  /// Work on communication while instructions could run: passing messages on, sums between its rounds.
  double handling_ms = 0;
  /// By instruction: time in which nothing could run, and it was what the rank waited for.
  std::vector<double> waited_ms;

  double kind_ms(program::InstructionKind kind) const { return kinds_ms[static_cast<size_t>(kind)]; }
  /// Updates and what they propose before: profiles and predictions have one time for both.
  double updates_ms() const {
    return kind_ms(program::InstructionKind::update) + kind_ms(program::InstructionKind::propose);
  }
};

/// The times of kernels and instructions of some iterations, of executors whose lanes are streams: a device
/// tells them by events, which cost a little. Compute lanes alone; communication is not told apart.
struct SampledTimes {
  int64_t iterations = 0;        ///< that were sampled
  std::vector<double> nodes_ms;  ///< of all of these together, as in WorkTimes
  std::array<double, program::kInstructionKindCount> kinds_ms{};
};

}  // namespace lockstep::run
