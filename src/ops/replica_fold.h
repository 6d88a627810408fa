#pragma once

#include <bit>

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

}  // namespace lockstep::ops
