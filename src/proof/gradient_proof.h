#pragma once

#include <map>
#include <vector>

#include "proof/proof.h"

namespace lockstep::proof {

/// Proves: `norm`, `propose` and `update` get the complete sum of the parameter's gradient: the canonical
/// tree over all leaves (REPRODUCIBLE), or every micro-batch of every leaf and use once. It belongs to the
/// byte that it updates. All workers' pushes of a step together have every leaf once.
class GradientProof : public Proof {
 public:
  using Proof::Proof;

  void before(const Place& at) override;
  void before_push(const Place& worker, const program::Operand& pushed, int server, int serve) override;
  void finish(int iterations) override;

 private:
  struct Pushed {
    Expressions::Coverage bytes;
    int expression;
    Place by;
  };

  void check_add(const Place& at);
  void check_update(const Place& at);
  /// Whether a piece of gradient is final; reports otherwise.
  bool check_final(const Place& at, const Piece& piece);
  void check_pushes(int parameter, const std::vector<Pushed>& pushes, int iteration);

  /// By iteration and parameter.
  std::map<int, std::map<int, std::vector<Pushed>>> pushed_;
};

}  // namespace lockstep::proof
