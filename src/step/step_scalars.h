#pragma once

#include <cstdint>

#include "ops/op.h"

namespace lockstep {

/// Contents of a program's `verdict` buffer: what the ranks agreed on, and what follows from it. `agree` writes the
/// first part, `norm` the second.
struct Verdict {
  // agree: summed over all leaves, in leaf order
  double loss_sum = 0;
  double count = 0;                ///< terms of the loss that were not ignored
  double correct = 0;
  float stop_requested = 0;        ///< the largest of what the ranks put in
  float replicas_differ = 0;       ///< 1: the ranks' state hashes are not all equal
  // norm
  double gradient_norm = 0;        ///< of the mean gradient over the global batch
  double gradient_scale = 1;       ///< clipping; update multiplies it with the ratio of counts
  double finite = 1;               ///< 1: loss and gradients are finite; 0: update writes nothing
  double reserved = 0;

  double mean_loss() const { return count > 0 ? loss_sum / count : 0; }
};
inline constexpr int64_t kAgreedBytes = 4 * sizeof(double);
static_assert(sizeof(Verdict) == 2 * kAgreedBytes);

/// One rank's contribution to `agree`, followed by kMetricCount doubles for each of its leaves.
struct AgreeRecord {
  double stop_requested = 0;
  uint64_t state_hash = 0;         ///< 0 on all ranks where nothing is compared
};
inline int64_t agree_record_bytes(int most_leaves) {
  return static_cast<int64_t>(sizeof(AgreeRecord) + sizeof(double) * kMetricCount * static_cast<size_t>(most_leaves));
}

/// Elements of a parameter's gradient whose squares are summed in one go; sums are then folded in order.
inline constexpr int64_t kNormChunk = 65536;

}  // namespace lockstep
