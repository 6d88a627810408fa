#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "proof/proof.h"

namespace lockstep::proof {

/// Proves: `norm`, `propose` and `update` get the complete sum of the parameter's gradient: the canonical
/// tree over all leaves (REPRODUCIBLE), or every micro-batch of every leaf and use once. It belongs to the
/// byte that it updates. All ranks that update a byte of a parameter do it with the same sum. All workers'
/// pushes of a step together have every leaf once.
class GradientProof : public Proof {
 public:
  using Proof::Proof;

  void before(const Place& at) override;
  void before_push(const Place& worker, const program::Operand& pushed, int server, int serve) override;
  void finish(int iterations) override;

 private:
  /// A gradient on its way to an update.
  struct Pushed {
    Expressions::Coverage bytes;
    int expression;
    Place by;
  };
  struct Updated {
    int64_t end;  ///< behind the last byte
    int expression;
    Place by;
  };

  void check_add(const Place& at);
  void check_update(const Place& at);
  /// Whether others that have updated these bytes did it with the same expression; reports otherwise.
  void check_equal(const Place& at, const Expressions::Coverage& bytes, int expression);
  /// Whether a piece of gradient is final; reports otherwise.
  bool check_final(const Place& at, const Piece& piece);
  void check_pushes(int parameter, const std::vector<Pushed>& pushes, int iteration);

  /// By iteration and parameter: what the first rank that updated bytes did it with, by the first of them.
  std::map<std::pair<int, int>, std::map<int64_t, Updated>> updated_;
  /// By iteration and parameter.
  std::map<int, std::map<int, std::vector<Pushed>>> pushed_;
};

}  // namespace lockstep::proof
