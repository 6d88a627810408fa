#include "comm/communicator.h"
#include "lockstep/error.h"

namespace lockstep::comm {

std::unique_ptr<Communicator> make_gpu_communicator(Communicator&, device::Device&,
                                                    const GpuCommunicatorOptions&) {
  throw DeviceError("this build of lockstep has no GPU backend; use --device cpu");
}

std::string gpu_communication_library() { return ""; }

}  // namespace lockstep::comm
