#pragma once

#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "proof/proof.h"

namespace lockstep::proof {

/// Proves: activations, stashes and gradients of activations belong to the micro-batch and leaf of the
/// segment's instruction that reads them. They are read whole, the same number by every micro-batch and on
/// every rank, and come from the same place for all of them. A backward begins with a loss or the gradient of
/// an output. Every gradient of an input that a backward computes is used by another one.
class ActivationProof : public Proof {
 public:
  using Proof::Proof;

  void before(const Place& at) override;
  void finish(int iterations) override;

 private:
  using Node = Expressions::Node;

  void check_read(const Place& at, const program::Operand& operand, int ordinal);
  /// What is wrong with the pieces of an operand; "" if nothing is.
  std::string fault_of(const Place& at, const program::Operand& operand, const std::vector<Piece>& pieces);
  /// Whether it is the first of its kind, or has found the same as the others.
  bool is_as_before(const Place& at, program::Role role, int ordinal, uint64_t found);
  void check_counts(const Place& at, std::map<program::Role, int>& counts);
  void check_has_a_gradient(const Place& at, int output_gradients);
  void note_computed(const Place& at);

  /// By kind, segment, leaves of the micro-batch, role and ordinal: the signature of what feeds it; under
  /// kCount: how many there are.
  std::map<std::tuple<program::InstructionKind, int, int, program::Role, int>, uint64_t> producers_;
  /// Gradients of activations, by signature: who computes each, and into what.
  std::map<uint64_t, std::pair<Place, std::string>> computed_;
  std::set<uint64_t> used_;  ///< those that a backward reads, itself or in a sum
  std::set<int> loss_segments_;
};

}  // namespace lockstep::proof
