#pragma once

#include <cstdint>

#include "base/ensure.h"
#include "ops/replica_fold.h"

namespace lockstep::ops {

/// to[i] += from[i]; the two do not overlap.
void add_numbers(float* to, const float* from, int64_t count, int threads);

/// Sums of so many numbers over virtual replicas that are computed one after the other: a chain for each, and
/// the chains' sum along the canonical tree.
class ReplicaFold {
 public:
  ReplicaFold(int replicas, int64_t numbers, int threads)
      : replicas_(replicas), numbers_(numbers), threads_(threads) {}

  /// Of workspace; whole cache lines.
  int64_t floats() const { return (fold_slots(replicas_) - 1) * slot_floats(); }
  /// make(replica, to) computes a replica's numbers; accumulating, it goes on with what the result holds.
  /// REQUIRES then: one replica.
  template <class Make>
  void run(float* result, bool accumulate, float* workspace, const Make& make) const {
    ensure(!accumulate || replicas_ == 1, "gradients of several replicas are complete");
    const auto place = [&](int slot) { return slot == 0 ? result : workspace + (slot - 1) * slot_floats(); };
    fold_replicas(
        replicas_, [&](int replica, int slot) { make(replica, place(slot)); },
        [&](int slot) { add_numbers(place(slot), place(slot + 1), numbers_, threads_); });
  }

 private:
  int64_t slot_floats() const { return (numbers_ + 15) / 16 * 16; }

  int replicas_;
  int64_t numbers_;
  int threads_;
};

/// sums[column] (+)= the sum of each replica's rows of x, a chain in ascending order, added along the tree.
/// Accumulating goes on with the chain. Workspace: column_chain_bytes. REQUIRES: `replicas` divides `rows`;
/// one replica, if it accumulates.
void column_chains(const float* x, int64_t rows, int64_t columns, int replicas, bool accumulate, float* sums,
                   float* workspace);
int64_t column_chain_bytes(int64_t columns, int replicas);

}  // namespace lockstep::ops
