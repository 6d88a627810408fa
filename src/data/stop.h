#pragma once

#include "lockstep/error.h"

namespace lockstep::data {

/// Opening files was given up because the process was asked to stop.
struct StopRequested : Error {
  StopRequested()
      : Error("stopped by request while the data were opened; nothing was trained, and nothing was saved",
              ExitCode::terminated) {}
};

}  // namespace lockstep::data
