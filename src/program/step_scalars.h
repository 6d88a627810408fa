#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/host_device.h"
#include "ops/op.h"

namespace lockstep::program {

/// Size of a program's `constants` buffer: what kernels of ops read of a step (ops::StepConstants) and what
/// updates read, side by side, with room to spare (run::StepScalars).
inline constexpr int64_t kStepScalarsBytes = 64;

/// Bytes of a leaf's metrics.
inline constexpr int64_t kMetricBytes = ops::kMetricCount * sizeof(double);

/// Contents of a program's `verdict` buffer: what the ranks agreed on, and what follows from it. `agree`
/// writes the first part, `norm` the second.
struct Verdict {
  // agree: summed over all virtual replicas, in their order
  double loss_sum = 0;
  double count = 0;  ///< terms of the loss that were not ignored
  double correct = 0;
  float stop_requested = 0;   ///< the largest of the ranks' values
  float replicas_differ = 0;  ///< 1: the ranks' state hashes are not all equal
  // norm
  double gradient_norm = 0;   ///< of the mean gradient over the global batch
  double gradient_scale = 1;  ///< clipping; update multiplies it with the ratio of counts
  double finite = 1;          ///< 1: loss and gradients are finite; 0: update writes nothing
  double reserved = 0;

  /// If all labels are ignored, there is no loss, and its value is NaN.
  bool has_loss() const { return count > 0; }
  double mean_loss() const {
    return has_loss() ? loss_sum / count : std::numeric_limits<double>::quiet_NaN();
  }
};
inline constexpr int64_t kAgreedBytes = 4 * sizeof(double);
static_assert(sizeof(Verdict) == 2 * kAgreedBytes);

/// One rank's contribution to `agree`, followed by kMetricCount doubles for each of its virtual replicas.
struct AgreeRecord {
  float stop_requested = 0;
  int32_t replicas = 0;
  uint64_t state_hash = 0;  ///< 0: this rank has nothing to compare
};
static_assert(sizeof(AgreeRecord) == 16);
inline int64_t agree_record_bytes(int most_records) {
  return static_cast<int64_t>(sizeof(AgreeRecord) +
                              sizeof(double) * ops::kMetricCount * static_cast<size_t>(most_records));
}

/// Combines the records of all ranks, `block_bytes` apart: sums over virtual replicas in order. Hashes are
/// compared among so many consecutive ranks, the replicas of a stage; if any of them has a hash, the first
/// one has. Writes the first part of `verdict`. REQUIRES: records are aligned to 8 bytes.
LOCKSTEP_HOST_DEVICE inline void fold_agreement(const std::byte* records, int64_t block_bytes, int ranks,
                                                int compared, Verdict& verdict) {
  uint64_t hash = 0;
  double loss_sum = 0, count = 0, correct = 0;
  float stop_requested = 0, replicas_differ = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::byte* at = records + block_bytes * rank;
    const AgreeRecord record = *reinterpret_cast<const AgreeRecord*>(at);
    if (record.stop_requested > stop_requested) stop_requested = record.stop_requested;
    if (rank % compared == 0) hash = record.state_hash;
    if (record.state_hash != 0 && record.state_hash != hash) replicas_differ = 1;
    const double* metrics = reinterpret_cast<const double*>(at + sizeof record);
    for (int i = 0; i < record.replicas; ++i, metrics += ops::kMetricCount) {
      loss_sum += metrics[ops::kLossSum];
      count += metrics[ops::kCount];
      correct += metrics[ops::kCorrect];
    }
  }
  verdict.loss_sum = loss_sum;
  verdict.count = count;
  verdict.correct = correct;
  verdict.stop_requested = stop_requested;
  verdict.replicas_differ = replicas_differ;
}

LOCKSTEP_HOST_DEVICE inline bool is_finite(double value) { return value - value == 0; }

/// Writes the second part of `verdict`, from the first part and the sums of squares of all weights' gradients
/// and of all statistics. Statistics are no gradients and do not count, but must be finite, too.
LOCKSTEP_HOST_DEVICE inline void conclude_norm(double weights, double statistics, double static_count,
                                               double clip_norm, const ops::StepConstants& constants,
                                               Verdict& verdict) {
  const double ratio = verdict.count > 0 ? static_count / verdict.count : 0;
  // Dividing by the scale of the loss, a power of two, is exact.
  verdict.gradient_norm = std::sqrt(weights) * ratio / constants.loss_scale;
  verdict.finite = is_finite(weights) && is_finite(statistics) && is_finite(verdict.loss_sum) ? 1 : 0;
  // As PyTorch's clip_grad_norm_: the coefficient is max_norm / (norm + 1e-6), at most 1.
  const double coefficient = clip_norm / (verdict.gradient_norm + 1e-6);
  verdict.gradient_scale = clip_norm > 0 && coefficient < 1 ? coefficient : 1;
}

/// The factor by which an update multiplies summed gradients. `whole_step`: the verdict's clipping applies.
LOCKSTEP_HOST_DEVICE inline double update_scale(const Verdict& verdict, const ops::StepConstants& constants,
                                                double static_count, bool whole_step) {
  const double ratio = verdict.count > 0 ? static_count / verdict.count : 0;
  return ratio * (whole_step ? verdict.gradient_scale : 1.0) / constants.loss_scale;
}

}  // namespace lockstep::program
