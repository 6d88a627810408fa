#include <cstdlib>

#include "device/device.h"
#include "lockstep/error.h"

namespace lockstep::device {

// Stands in for the CUDA backend if a program is built without it.

GpuProbe probe_gpus() {
  // A package has a program with the backend too, and takes this one if libraries for that are missing.
  if (const char* missing = std::getenv("LOCKSTEP_MISSING_GPU_LIBRARIES");
      missing != nullptr && *missing != '\0')
    return {{}, std::string(missing) + "; install what is missing, or use --device cpu"};
  return {{},
          "this build of lockstep has no CUDA backend; configure it with LOCKSTEP_CUDA=ON where CUDA and "
          "NCCL are installed, or use "
          "--device cpu"};
}

void set_gpu_environment(bool) {}

std::string gpu_libraries() { return ""; }

std::unique_ptr<Device> make_cuda_device(int) { throw DeviceError(probe_gpus().problem); }

}  // namespace lockstep::device
