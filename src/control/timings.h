#pragma once

#include <chrono>

namespace lockstep::control {

/// Waiting times of the control plane itself, besides the WatchdogOptions of a job. A launcher that sees a
/// rank die sends SIGTERM to the others within 0.1 s and SIGKILL a second later. A decision must be out by
/// then.
struct ControlTimings {
  std::chrono::milliseconds connect{30000};     ///< for all ranks to connect
  std::chrono::milliseconds answer{10000};      ///< for a welcome
  std::chrono::milliseconds hello{5000};        ///< for a whole hello, once a connection is accepted
  std::chrono::milliseconds collective{60000};  ///< for each exchange over the communicator at the start
  std::chrono::milliseconds fresh{300};         ///< for what the others do at the moment of a loss
  std::chrono::milliseconds decision{500};  ///< for a decision, once the launcher wants this process to end
  std::chrono::milliseconds acknowledge{1000};  ///< for rank 0 to know of an abort
  std::chrono::milliseconds last_words{1000};   ///< for stderr and a file system to take a report
  std::chrono::milliseconds closing{300};       ///< for the others to take the decision
  std::chrono::milliseconds reaping{200};   ///< for the launcher to see the end of a lost rank before ours
  std::chrono::milliseconds parting{2000};  ///< for farewells
  std::chrono::milliseconds leave{60000};   ///< for a process to end once its work is done
};

}  // namespace lockstep::control
