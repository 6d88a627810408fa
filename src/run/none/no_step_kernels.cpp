#include "lockstep/error.h"
#include "run/step_kernels.h"

namespace lockstep::run {

std::unique_ptr<StepKernels> make_gpu_step_kernels() {
  throw DeviceError("this build of lockstep has no GPU backend; use --device cpu");
}

}  // namespace lockstep::run
