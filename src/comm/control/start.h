#pragma once

#include <memory>

#include "comm/control/control_plane.h"
#include "comm/control/timings.h"

namespace lockstep {

/// start_control_plane with other timings, for tests. COLLECTIVE.
std::unique_ptr<ControlPlane> start_control_plane(Communicator& world, const ControlPlaneOptions& options,
                                                  const ControlTimings& timings);

}  // namespace lockstep
