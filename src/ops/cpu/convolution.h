#pragma once

#include <cstdint>
#include <optional>

#include "ops/cpu/chained_products.h"
#include "ops/cpu/convolution_forward.h"
#include "ops/cpu/convolution_input_gradient.h"
#include "ops/cpu/convolution_sizes.h"
#include "ops/cpu/convolution_weight_gradient.h"
#include "ops/cpu/depthwise_convolution.h"

namespace lockstep::ops {

/// A convolution as products of matrices of which one is never whole in memory: a row for each pixel of y,
/// which is the window of x that makes it. Groups are such products one after the other.
///
/// Every element of y is one chain of fused multiply-adds over its window, padding included, row by row of
/// the kernel; the bias is added last. An element of dx is the sum over the pixels of y that it takes part
/// in, in ascending order, of chains over units of its group. One of the weight's gradient is a chain over
/// the pixels of all images of a replica; the chains' sum is along the canonical tree
/// (layout/canonical_tree.h). So bits depend neither on how many images are computed at once, nor on threads
/// or the instruction set.
///
/// How it is tiled: docs/cpu-products.md. Workspace is uninitialised memory, aligned to 64 bytes.
class Convolution {
 public:
  Convolution(const ConvolutionSizes& sizes, int replicas, int threads);

  int64_t forward_bytes() const;  ///< of workspace
  int64_t input_gradient_bytes() const;
  int64_t weight_gradient_bytes() const;

  /// bias: null if there is none.
  void forward(const float* x, const float* weight, const float* bias, float* y, float* workspace) const;
  void input_gradient(const float* dy, const float* weight, float* dx, float* workspace) const;
  /// Accumulating goes on with the chains. REQUIRES then: one replica.
  void weight_gradient(const float* dy, const float* x, float* dweight, bool accumulate,
                       float* workspace) const;

 private:
  /// Of windows in images.
  struct Windows {
    ConvolutionForward forward;
    ConvolutionInputGradient input_gradient;
    ConvolutionWeightGradient weight_gradient;
  };

  std::optional<ChainedProducts> plain_;  // of windows of one pixel, which are products of whole matrices
  std::optional<DepthwiseConvolution> depthwise_;
  std::optional<Windows> windows_;  // of all others
};

}  // namespace lockstep::ops
