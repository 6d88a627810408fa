#pragma once

#include <optional>
#include <span>

#include "control/rank_state.h"
#include "control/watchdog_options.h"

namespace lockstep::control {

/// The rank at fault, and the fault. `slot`: an index into the rank's last heartbeat, if one thread is at
/// fault.
struct Finding {
  Fault fault;
  int rank;
  int slot = -1;
  bool operator==(const Finding&) const = default;
};

/// Whether the rank was not heard for half of the limit of silence: it may have made progress since, or be
/// the one for which others wait.
bool is_late(const RankState& state, const WatchdogOptions& options);

/// The rank that was lost first, otherwise the rank that has been silent for longest. Pure.
std::optional<Finding> find_absent(std::span<const RankState> states, const WatchdogOptions& options);

/// The rank at fault among all ranks of a job (element r is rank r), or none: lost ranks first, then silent
/// ones, then stuck ones. A waiting rank is at fault only if all ranks wait and none has made progress within
/// the deadline, nor was spared within it; then it is the one furthest behind. Idle threads and ranks that
/// have left are never at fault. Pure.
std::optional<Finding> judge(std::span<const RankState> states, const WatchdogOptions& options);

/// The deadline for one activity of this kind; none (zero) for idle.
std::chrono::milliseconds deadline_of(Activity activity, const WatchdogOptions& options);

/// Seconds since any of the rank's threads made progress.
double waited_seconds(const Heartbeat& heartbeat);

}  // namespace lockstep::control
