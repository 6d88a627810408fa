#include <fmt/format.h>

#include "lockstep/error.h"
#include "ops/op.h"

namespace lockstep::ops {

std::unique_ptr<Kernel> make_cuda_kernel(const Op& op, std::span<const TensorSpec>, const KernelOptions&) {
  throw DeviceError(
      fmt::format("op {} has no GPU kernel in this build of lockstep: build it with -DLOCKSTEP_CUDA=ON, or "
                  "use --device cpu",
                  name_of(op)));
}

}  // namespace lockstep::ops
