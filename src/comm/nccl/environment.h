#pragma once

#include "comm/communicator.h"

namespace lockstep {

/// Sets what NCCL reads of the environment, unless the user has set it. Counts until NCCL is first called.
void set_nccl_environment(GpuAlgorithm algorithm);

}  // namespace lockstep
