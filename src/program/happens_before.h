#pragma once

#include <cstdint>
#include <vector>

#include "base/index.h"
#include "program/program.h"

namespace lockstep::program {

/// The partial order of a program's instructions over a number of iterations: the transitive closure of the
/// order within lanes and the declared dependencies. Node k * N + i is instruction i (of N) in iteration k.
///
/// Lanes are totally ordered, so one clock per lane suffices: a node's clock says how many instructions of
/// each lane happen before it. Nodes are visited in ascending order, because dependencies point backwards. A
/// caller may add dependencies of the node that was visited last.
///
/// REQUIRES: lanes valid; dependencies of distance 0 point to earlier instructions.
class HappensBefore {
 public:
  HappensBefore(const Program& program, int iterations);

  /// Computes the clock of the next node from its predecessor on the lane and its declared dependencies.
  void visit(int node);
  void visit_all();
  /// Node `later`, the last one visited, now also happens after `earlier`.
  void depend(int later, int earlier);

  bool before(int earlier, int later) const {
    return clock(later)[lane_[index(earlier)]] >= sequence_[index(earlier)];
  }
  int node_count() const { return static_cast<int>(sequence_.size()); }
  int lane_of(int node) const { return nth(lane_, node); }
  /// The node's place on its lane over all iterations, from 1.
  int sequence_of(int node) const { return nth(sequence_, node); }
  /// Per lane, how many of its instructions happen before the node.
  const int* clock(int node) const { return &clocks_[static_cast<size_t>(node) * lane_count_]; }

 private:
  static size_t index(int node) { return static_cast<size_t>(node); }

  const Program& program_;
  int instruction_count_;
  size_t lane_count_;
  std::vector<int> lane_, sequence_, previous_;  ///< by node; previous_ on the same lane, or -1
  std::vector<int> clocks_;
};

}  // namespace lockstep::program
