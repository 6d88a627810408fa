#pragma once

#include <bit>
#include <cstdint>

namespace lockstep::ops {

/// Slots that fold_replicas() needs for `count` virtual replicas.
inline int fold_slots(int count) { return static_cast<int>(std::bit_width(static_cast<unsigned>(count))); }

/// The canonical tree over `count` leaves (layout/canonical_tree.h), taken in ascending order with a stack of
/// slots: make(leaf, slot) fills a slot, add(slot) adds slot + 1 to it. The sum lies in slot 0.
template <class Make, class Add>
void fold_replicas(int count, const Make& make, const Add& add) {
  int filled = 0;
  for (int leaf = 0; leaf < count; ++leaf) {
    make(leaf, filled++);
    for (int nodes = leaf + 1; nodes % 2 == 0; nodes /= 2) add(--filled - 1);
  }
  while (filled > 1) add(--filled - 1);
}

/// to[i] += from[i]; the two do not overlap.
void add_numbers(float* to, const float* from, int64_t count, int threads);

/// sums[column] (+)= the sum of each replica's rows of x, a chain in ascending order, added along the tree.
/// Accumulating goes on with the chain. Workspace: column_chain_bytes. REQUIRES: `replicas` divides `rows`;
/// one replica, if it accumulates.
void column_chains(const float* x, int64_t rows, int64_t columns, int replicas, bool accumulate, float* sums,
                   float* workspace);
int64_t column_chain_bytes(int64_t columns, int replicas);

}  // namespace lockstep::ops
