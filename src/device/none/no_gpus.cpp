#include "device/device.h"
#include "lockstep/error.h"

namespace lockstep {

// Stands in for the CUDA backend where a program is built without it.

GpuProbe probe_gpus() {
  return {{}, "this build of lockstep has no CUDA backend; configure it with LOCKSTEP_CUDA=ON where CUDA 13 is installed, or use "
              "--device cpu"};
}

std::string gpu_libraries() { return ""; }

std::unique_ptr<Device> make_cuda_device(int) { throw DeviceError(probe_gpus().problem); }

}  // namespace lockstep
