#pragma once

#include <cstdint>
#include <vector>

#include "cudnn_library.h"
#include "resnet50.h"

namespace lockstep::ops {

enum class ConvolutionPhase { forward, input_gradient, weight_gradient };

/// One of a convolution's three products of bfloat16 tensors in NHWC memory, with sums in float32.
class CudnnConvolution {
 public:
  /// `result`: of what is written, CUDNN_DATA_BFLOAT16 or CUDNN_DATA_FLOAT.
  CudnnConvolution(const Cudnn& library, const ProbedConvolution& shape, int64_t batch,
                   ConvolutionPhase phase, cudnnDataType_t result);

  /// A way to compute it.
  struct Plan {
    CudnnObject object;
    bool deterministic;
    int64_t workspace_bytes;
  };
  /// How many ways the library proposes, its favourite first.
  int64_t proposals() const { return static_cast<int64_t>(configurations_.size()); }
  /// Throws DeviceError if the library cannot compute it in this way after all.
  Plan plan(int64_t proposal) const;

  /// Pointers are of images, weights and outputs, whichever of them is written.
  void run(const Plan& plan, void* x, void* w, void* y, void* workspace) const;

 private:
  const Cudnn& library_;
  std::vector<CudnnObject> parts_;  // of the graph
  CudnnObject graph_;
  std::vector<CudnnObject> configurations_;
};

}  // namespace lockstep::ops
