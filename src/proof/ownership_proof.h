#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "proof/proof.h"
#include "tensor/part.h"

namespace lockstep::proof {

/// Proves: a rank updates exactly the parts of parameters that its program says it owns, with the optimizer
/// state that its program assigns to these. The parts that ranks own of a parameter have each of its elements
/// once. Each part has one owner, or all replicas of a stage own it and make the same update.
class OwnershipProof : public Proof {
 public:
  using Proof::Proof;

  void before(const Place& at) override;
  void finish(int iterations) override;

 private:
  void check_owned(const Place& at, const HeldRun& run);
  void check_whole(const Place& at, const HeldRun& run);
  void check_state(const Place& at, const HeldRun& run);
  void check_proposed(const Place& at);
  void check_proposed(const Place& at, const HeldRun& run, int64_t size_bytes,
                      const program::ByteRange& state);
  void check_amounts(int iterations);
  void check_owners();
  using Owners = std::map<tensor::Part, std::set<int>>;  ///< ranks by what they own of a parameter
  void check_divided(int parameter, const Owners& owners);
  /// For a part that several ranks own.
  void check_shared(int parameter, const tensor::Part& part, const std::set<int>& owners);
  int stage_of(int rank) const;

  std::map<std::pair<int, int>, int64_t> updated_;  ///< elements by rank and iteration
  std::vector<int> stages_;                         ///< by rank: equal for replicas of a stage
};

}  // namespace lockstep::proof
