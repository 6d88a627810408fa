#pragma once

#include <memory>

#include "program/blocks.h"
#include "program/ring_schedule.h"
#include "run/actions.h"
#include "run/step_kernels.h"

namespace lockstep::run {

/// One rank's part of a pass around the ring of all ranks of `communicator`.
struct RingCall {
  program::RingPass pass;
  program::Blocks blocks;  ///< of `data`
  std::byte* data = nullptr;
  std::byte* scratch = nullptr;  ///< reduce_scatter: room for the largest block
  DType dtype = DType::float32;
  comm::Communicator* communicator = nullptr;
};

/// An exchange for each round (program::ring_round), followed by the sum of what it received. Rounds in which
/// this rank neither sends nor receives are omitted.
Action make_ring_action(const RingCall& call, std::shared_ptr<StepKernels> kernels);

}  // namespace lockstep::run
