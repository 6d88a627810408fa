#include <fmt/format.h>

#include "lockstep/error.h"
#include "ops/parts.h"

namespace lockstep::ops {

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Custom& op, Inputs, const KernelOptions&) {
  throw DeviceError(fmt::format("custom op '{}' runs on CPUs only: use --device cpu", op.name));
}

}  // namespace lockstep::ops
