#pragma once

#include <cstdint>
#include <vector>

#include "run/step_kernels.h"

namespace lockstep::run {

/// What a server measures of a range before it updates it, in sessions. It needs nobody else for that: a
/// range holds whole parameters. Sums are of the chunks that norms of steps have, in their order.
class ServedMeasures {
 public:
  /// `update`: of the range, with its places of parameters and state, and `elements` of each of the model's
  /// parameters. Throws InternalError if the range holds a part of a parameter.
  ServedMeasures(const UpdateCall& update, const std::vector<int64_t>& elements,
                 const std::vector<bool>& is_norm_or_bias);

  /// Makes scales for the update with these gradients; moves state if updates are measured. The update's
  /// verdict and constants are those of `update`.
  void measure(const UpdateCall& update, StepKernels& kernels, device::Stream& stream);
  /// By parameter.
  const double* scales() const { return scales_.data(); }

 private:
  NormCall gradients_, parameters_;
  ProposeCall propose_;
  RatiosCall ratios_;
  std::vector<size_t> weights_;  ///< which pieces of the update are those
  int64_t chunks_ = 0;
  int slots_ = 0;  ///< of state that move before updates
  std::vector<double> sums_[layout::kMeasuredCount];
  std::vector<double> scales_;
};

}  // namespace lockstep::run
