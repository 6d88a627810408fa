#include <fmt/format.h>

#include "lockstep/error.h"
#include "ops/cuda/kernels.h"

namespace lockstep {

void throw_no_gpu_kernel(const Op& op) {
  throw DeviceError(fmt::format("op {} has no GPU kernel yet; use --device cpu", name_of(op)));
}

std::unique_ptr<Kernel> make_cuda_kernel(const Op& op, Inputs inputs, const KernelOptions& options) {
  return std::visit([&](const auto& o) { return make_gpu_kernel(o, inputs, options); }, op);
}

}  // namespace lockstep
