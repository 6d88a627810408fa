#pragma once

#include <map>
#include <utility>

#include "proof/proof.h"

namespace lockstep::proof {

/// What a rank updates is what its program says that it owns, all of it and nothing else, with the optimizer
/// state that its program says belongs to just these bytes.
class OwnershipProof : public Proof {
 public:
  using Proof::Proof;

  void before(const Place& at) override;
  void finish(int iterations) override;

 private:
  void check_owned(const Place& at, const HeldPart& part);
  void check_state(const Place& at, const HeldPart& part, const program::Operand& parameters,
                   const program::Operand* state);

  std::map<std::pair<int, int>, int64_t> updated_bytes_;  ///< by rank and iteration
};

}  // namespace lockstep::proof
