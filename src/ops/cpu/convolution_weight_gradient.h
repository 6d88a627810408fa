#pragma once

#include <cstdint>
#include <optional>

#include "ops/cpu/convolution_images.h"
#include "ops/cpu/convolution_weight_panels.h"
#include "ops/cpu/replica_fold.h"

namespace lockstep::ops {

/// The weight's gradient of a convolution (convolution.h, which states its order of sums) = dy^T windows,
/// some pixels at a time: chains go on from what is there.
class ConvolutionWeightGradient {
 public:
  ConvolutionWeightGradient(const ConvolutionSizes& sizes, int replicas, int threads);

  int64_t bytes() const;  ///< of workspace
  /// Accumulating goes on with the chains. REQUIRES then: one replica.
  void run(const float* dy, const float* x, float* dweight, bool accumulate, float* workspace) const;

 private:
  int64_t thread_floats() const;
  int64_t sharing_threads() const;
  void add_images(int64_t first, int64_t count, const float* dy, const float* x, float* dweight,
                  bool accumulate, float* workspace) const;
  void add_part(int64_t group, int64_t part, int64_t image, const float* dy, const float* padded,
                bool goes_on, float* dweight, float* workspace) const;

  ConvolutionSizes sizes_;
  int64_t replica_images_;
  int threads_;
  ReplicaFold fold_;
  WindowPieces pieces_;
  Sharing sharing_;                                ///< of a group's gradient
  std::optional<ConvolutionWeightPanels> panels_;  ///< which does the work, if it suits
};

}  // namespace lockstep::ops
