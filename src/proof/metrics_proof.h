#pragma once

#include <map>
#include <vector>

#include "proof/proof.h"

namespace lockstep::proof {

/// The metrics that an `agree` folds are those of every leaf, once; where sums must be reproducible, leaves
/// and their micro-batches ascend. All workers' pushes of a step together hold those of every leaf, too.
class MetricsProof : public Proof {
 public:
  using Proof::Proof;

  void before_collective(const std::vector<Place>& members) override;
  void before_push(const Place& worker, const program::Operand& pushed, int server, int serve) override;
  void finish(int iterations) override;

 private:
  using Atom = Expressions::Atom;

  /// REQUIRES: a sum. Returns its leaf, which must not be below `previous_leaf`.
  int check_order(const Place& member, int expression, int previous_leaf);

  std::map<int, std::vector<Atom>> pushed_;  ///< by iteration
};

}  // namespace lockstep::proof
