#pragma once

#include "comm/communicator.h"

namespace lockstep::comm {

/// Sets environment variables of NCCL, unless the user has set them. Has an effect until NCCL is first
/// called.
void set_nccl_environment(GpuAlgorithm algorithm);

/// Lets this rank use a GPU that other ranks use, too. NCCL allows this if it takes each rank to be on its
/// own host; then they communicate through the network.
void allow_shared_gpu(int rank);

}  // namespace lockstep::comm
