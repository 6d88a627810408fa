#include "ops/parts.h"

namespace lockstep::ops {

// Ops that only name memory anew do nothing, on every device alike.

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Flatten& op, Inputs inputs, const KernelOptions& options) {
  return make_cpu_kernel(op, inputs, options);
}
template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Reshape& op, Inputs inputs, const KernelOptions& options) {
  return make_cpu_kernel(op, inputs, options);
}

}  // namespace lockstep::ops
