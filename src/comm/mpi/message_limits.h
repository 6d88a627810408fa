#pragma once

#include <memory>

#include "comm/communicator.h"

namespace lockstep::comm {

/// For tests: what long messages meet, small enough to be met by those of tests. 0: as it is.
struct MessageLimits {
  int64_t largest_count = 0;  ///< what one MPI call is taken to count
  int64_t piece_bytes = 0;    ///< of what messages pass as, as if each rank had a host of its own
};
/// environment.world() with these. COLLECTIVE.
std::unique_ptr<Communicator> make_world_with(MpiEnvironment& environment, const MessageLimits& limits);

}  // namespace lockstep::comm
