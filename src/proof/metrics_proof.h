#pragma once

#include <vector>

#include "proof/proof.h"

namespace lockstep::proof {

/// Proves: the metrics that an `agree` folds are those of every leaf, once. (With servers that do not wait
/// for all workers: every leaf of the ranks that agree.) If sums must be reproducible, leaves and their
/// micro-batches ascend.
class MetricsProof : public Proof {
 public:
  using Proof::Proof;

  void before_collective(const std::vector<Place>& members) override;

 private:
  using Atom = Expressions::Atom;

  /// REQUIRES: a sum. Returns its leaf, which must not be below `previous_leaf`.
  int check_order(const Place& member, int expression, int previous_leaf);
};

}  // namespace lockstep::proof
