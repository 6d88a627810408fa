#pragma once

#include "comm/communicator.h"

namespace lockstep::comm {

/// Sets what NCCL reads of the environment, unless the user has set it. Counts until NCCL is first called.
void set_nccl_environment(GpuAlgorithm algorithm);

/// Lets this rank use a GPU that others use too: NCCL allows that to ranks that it takes to be on hosts of
/// their own. They talk through the network then.
void allow_shared_gpu(int rank);

}  // namespace lockstep::comm
