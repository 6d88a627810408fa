#pragma once

#include "lockstep/error.h"

namespace lockstep::data {

/// Opening files was given up because the process was asked to stop.
struct StopRequested : Error {
  StopRequested()
      : Error("stopped by request while the data were opened; nothing was trained, and nothing was saved",
              ExitCode::terminated) {}
};

/// Throws it if `stop_requested`, which may be null, returns true.
inline void require_no_stop(bool (*stop_requested)()) {
  if (stop_requested != nullptr && stop_requested()) throw StopRequested();
}

}  // namespace lockstep::data
