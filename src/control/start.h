#pragma once

#include <memory>

#include "control/control_plane.h"
#include "control/timings.h"

namespace lockstep::control {

/// start_control_plane with other timings, for tests. COLLECTIVE.
std::unique_ptr<ControlPlane> start_control_plane(const Meeting& meeting, const ControlPlaneOptions& options,
                                                  const ControlTimings& timings);

}  // namespace lockstep::control
