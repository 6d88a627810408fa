#include "ops/parts.h"

namespace lockstep::ops {

std::unique_ptr<Kernel> make_cuda_kernel(const Op& op, Inputs inputs, const KernelOptions& options) {
  return std::visit([&](const auto& o) { return make_gpu_kernel(o, inputs, options); }, op);
}

}  // namespace lockstep::ops
