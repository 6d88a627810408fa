#include "base/ensure.h"
#include "ops/cuda/conv2d.h"
#include "ops/cuda/replica_sum.h"
#include "ops/parts.h"
#include "ops/replica_kernel.h"

namespace lockstep::ops {

namespace {

/// Whether the op's kernel computes several virtual replicas by itself.
bool knows_of_replicas(const Op& op, Inputs inputs, const KernelOptions& options) {
  if (const auto* convolution = std::get_if<Conv2d>(&op))
    return joins_replicas(*convolution, inputs[0], options);
  return std::holds_alternative<Linear>(op) || std::holds_alternative<LayerNorm>(op) ||
         std::holds_alternative<RmsNorm>(op) || std::holds_alternative<SoftmaxCrossEntropy>(op);
}

}  // namespace

std::unique_ptr<Kernel> make_cuda_kernel(const Op& op, Inputs inputs, const KernelOptions& options) {
  const auto make = [&](const KernelOptions& with) {
    return std::visit([&](const auto& o) { return make_gpu_kernel(o, inputs, with); }, op);
  };
  if (options.virtual_replicas == 1 || !sums_over_samples(infer(op, inputs))) return make(options);
  const KernelOptions one = options_of_one(options);
  ensure(one.batch % kReplicaSamplesOnGpu == 0, "virtual replicas on GPUs have whole packs of samples");
  if (knows_of_replicas(op, inputs, options)) return make(options);
  return make_replica_kernel(op, inputs, options, make(one), add_floats);
}

}  // namespace lockstep::ops
