#pragma once

#include <optional>
#include <span>

#include "control/rank_state.h"
#include "control/watchdog_options.h"

namespace lockstep::control {

/// Who is to blame, and for what; `slot` is an index into the rank's last heartbeat where one thread is
/// meant.
struct Finding {
  Fault fault;
  int rank;
  int slot = -1;
  bool operator==(const Finding&) const = default;
};

/// Whether nothing was heard of the rank for half of what counts as silence: it may have got on since, or be
/// the one for whom the others wait.
bool is_late(const RankState& state, const WatchdogOptions& options);

/// The rank that was lost first, otherwise the one that is silent for longest. Pure.
std::optional<Finding> find_absent(std::span<const RankState> states, const WatchdogOptions& options);

/// The culprit among all ranks of a job (element r is rank r), or nobody: a lost rank before a silent one,
/// that before a stuck one. A rank that waits is named only where all ranks do and none has got on for the
/// deadline: then it is the one furthest behind. Idle threads and ranks that have left are never blamed.
/// Pure.
std::optional<Finding> judge(std::span<const RankState> states, const WatchdogOptions& options);

/// The deadline for one thing of this kind; none (zero) for idle.
std::chrono::milliseconds deadline_of(Activity activity, const WatchdogOptions& options);

/// Since the rank last got on in any of its threads.
double waited_seconds(const Heartbeat& heartbeat);

}  // namespace lockstep::control
