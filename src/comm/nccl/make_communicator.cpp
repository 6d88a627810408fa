#include "comm/nccl/environment.h"
#include "comm/nccl/nccl_communicator.h"

namespace lockstep {

std::unique_ptr<Communicator> make_gpu_communicator(Communicator& bootstrap, Device& device,
                                                    const GpuCommunicatorOptions& options) {
  require(device.kind() == DeviceKind::cuda, "a communicator for GPUs needs a GPU");
  set_nccl_environment(options.algorithm);
  return std::make_unique<NcclCommunicator>(bootstrap.split(0, bootstrap.rank()), device, options, "world");
}

}  // namespace lockstep
