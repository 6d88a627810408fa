#include <fmt/format.h>

#include <algorithm>

#include "comm/gather_texts.h"
#include "comm/nccl/check.h"
#include "comm/nccl/environment.h"
#include "comm/nccl/nccl_communicator.h"
#include "device/cuda/cuda_device.h"

namespace lockstep::comm {

std::unique_ptr<Communicator> make_gpu_communicator(Communicator& bootstrap, device::Device& device,
                                                    const GpuCommunicatorOptions& options) {
  require(device.kind() == device::DeviceKind::cuda, "a communicator for GPUs needs a GPU");
  set_nccl_environment(options.algorithm);
  // Whether that is a good idea, others have decided.
  const std::string uuid = dynamic_cast<device::CudaDevice&>(device).facts().uuid;
  const auto uuids = gather_texts(bootstrap, uuid, options.start_timeout);
  if (std::count(uuids.begin(), uuids.end(), uuid) > 1) allow_shared_gpu(bootstrap.rank());
  const auto others = gather_texts(bootstrap, options.only_exchanges ? "" : "sums", options.start_timeout);
  GpuCommunicatorOptions of_all = options;
  of_all.only_exchanges = std::count(others.begin(), others.end(), "") == std::ssize(others);
  return std::make_unique<NcclCommunicator>(bootstrap.split(0, bootstrap.rank()), device, of_all, "world");
}

std::string gpu_communication_library() {
  int version = 0;
  check(ncclGetVersion(&version));
  return fmt::format("nccl={}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace lockstep::comm
