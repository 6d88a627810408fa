#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control/progress.h"

namespace lockstep::control {

struct RankIdentity {
  std::string host;
  int64_t pid = 0;
  bool operator==(const RankIdentity&) const = default;
};

/// One thread of a rank, as seen by the rank's watchdog.
struct SlotState {
  int slot = 0;
  Activity activity = Activity::idle;
  double seconds = 0;  ///< since its entry last changed
  std::string text;    ///< where it is: "step instruction 17 (...)"
  bool operator==(const SlotState&) const = default;
};

/// A rank's report about itself.
struct Heartbeat {
  int64_t step = 0;              ///< optimizer steps complete
  std::vector<SlotState> slots;  ///< those that are not idle, ascending
  bool operator==(const Heartbeat&) const = default;
};

/// What is known of a rank at one moment.
struct RankState {
  RankIdentity who;
  bool told = false;          ///< whether it ever sent a heartbeat to this rank
  Heartbeat last;             ///< what it said then
  double heard_seconds = 0;   ///< since it was last heard
  bool left = false;          ///< it said farewell, so it cannot be late any more
  bool lost = false;          ///< its connection ended without a farewell
  bool spared = false;        ///< the job continued without it: it counts as one that has left
  double spared_seconds = 0;  ///< since then
  double lost_seconds = 0;    ///< since the loss
  std::string lost_reason;    ///< "its connection closed"
};

/// lost: gone without a farewell. silent: connected, but not heard. stuck: heard, but one of its threads
/// makes no progress. deadlock: all wait. failed: it reported a failure. terminated: the launcher ends the
/// job.
enum class Fault : uint8_t { lost, silent, stuck, deadlock, failed, terminated };

/// Why the job ends, as one rank carries it out.
struct JobDecision {
  Fault fault = Fault::failed;
  int rank = 0;         ///< who is named
  int code = 0;         ///< with which all leave
  std::string report;   ///< for crash files
  std::string printed;  ///< what this rank puts on stderr; "" if another rank does
};

}  // namespace lockstep::control
