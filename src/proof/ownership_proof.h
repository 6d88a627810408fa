#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "layout/byte_span.h"
#include "proof/proof.h"

namespace lockstep::proof {

/// Proves: a rank updates exactly the bytes that its program says it owns, with the optimizer state that its
/// program assigns to these bytes. Each byte has one owner, or all replicas of a stage own it and make the
/// same update.
class OwnershipProof : public Proof {
 public:
  using Proof::Proof;

  void before(const Place& at) override;
  void finish(int iterations) override;

 private:
  void check_owned(const Place& at, const HeldPart& part);
  void check_whole(const Place& at, const HeldPart& part);
  void check_state(const Place& at, const HeldPart& part);
  void check_proposed(const Place& at);
  void check_proposed(const Place& at, const HeldPart& part, int64_t size_bytes,
                      const program::ByteRange& state);
  void check_amounts(int iterations);
  void check_owners();
  /// For bytes that several ranks own.
  void check_shared(int parameter, const layout::ByteSpan& bytes, const std::set<int>& owners);
  int stage_of(int rank) const;

  std::map<std::pair<int, int>, int64_t> updated_bytes_;  ///< by rank and iteration
  std::vector<int> stages_;                               ///< by rank: equal for replicas of a stage
};

}  // namespace lockstep::proof
