#pragma once

#include "proof/proof.h"

namespace lockstep::proof {

/// Proves error feedback: every rounding of a leaf's gradient to the wire's type adds the residual of that
/// leaf, use and byte, as the rounding of the step before has left it, and each residual is used once in a
/// step. Sums of leaves that are rounded round without. A snapshot saves each residual of its rank once.
class ResidualProof : public Proof {
 public:
  using Proof::Proof;

  void before(const Place& at) override;
  void finish(int iterations) override;

 private:
  void check_cast(const Place& at);
  void check_without(const Place& at, const program::Operand& source);
  void check_pair(const Place& at, const Piece& gradient, const Piece& residual);
  void check_saved(const Place& at, const program::Operand& residual);
  void check_all_saved(const Place& at);
  /// "leaf 2 of 'w'"
  std::string name_of(const Piece& residual);
};

}  // namespace lockstep::proof
