#pragma once

#include "comm/gather_texts.h"
#include "control/control_plane.h"

namespace lockstep::control {

/// The ranks of a communicator, which must outlive it.
inline Meeting meeting_of(comm::Communicator& world) {
  return {.rank = world.rank(),
          .size = world.size(),
          .exchange = [&world](const std::string& own, std::chrono::milliseconds timeout) {
            return comm::gather_texts(world, own, timeout);
          }};
}

}  // namespace lockstep::control
