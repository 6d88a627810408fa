#pragma once

#include "comm/gather_texts.h"
#include "control/control_plane.h"

namespace lockstep {

/// The ranks of a communicator, which must outlive it.
inline Meeting meeting_of(Communicator& world) {
  return {.rank = world.rank(), .size = world.size(), .exchange = [&world](const std::string& own, std::chrono::milliseconds timeout) {
            return gather_texts(world, own, timeout);
          }};
}

}  // namespace lockstep
