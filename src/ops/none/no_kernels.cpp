#include <fmt/format.h>

#include "lockstep/error.h"
#include "ops/op.h"
#include "ops/orthogonalizer.h"

namespace lockstep::ops {

std::unique_ptr<Kernel> make_cuda_kernel(const Op& op, std::span<const TensorSpec>, const KernelOptions&) {
  throw DeviceError(
      fmt::format("op {} has no GPU kernel in this build of lockstep: build it with -DLOCKSTEP_CUDA=ON, or "
                  "use --device cpu",
                  name_of(op)));
}

std::unique_ptr<Orthogonalizer> make_gpu_orthogonalizer(const MatrixSize&, int) {
  throw DeviceError("this build of lockstep has no GPU backend; use --device cpu");
}

}  // namespace lockstep::ops
