#pragma once

#include <memory>

#include "comm/communicator.h"

namespace lockstep::comm {

/// environment.world() that treats everything above `largest_count` as it treats what an int cannot count: so
/// that tests reach that code with small messages. COLLECTIVE.
std::unique_ptr<Communicator> make_world_counting_to(MpiEnvironment& environment, int64_t largest_count);

}  // namespace lockstep::comm
