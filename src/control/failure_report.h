#pragma once

#include <span>
#include <string>
#include <vector>

#include "control/judge.h"
#include "control/rank_state.h"
#include "control/watchdog_options.h"
#include "lockstep/error.h"

namespace lockstep::control {

// The messages of a failing job, as pure functions of what is known.

ExitCode exit_code_of(Fault fault);  ///< REQUIRES: not failed, whose code is the failing rank's own

/// "lockstep: the job ends with exit code 200 (lost: rank 2 on b)\n": read by launchers.
std::string last_line(int code, Fault fault, int rank, const std::string& host);

/// The rank at fault and what all ranks did: "lockstep: error: ..." and lines below it. There are fewer than
/// forty lines for any number of ranks: if there are many, ranks in identical situations share a line. The
/// last line is last_line().
std::string failure_report(const Finding& finding, std::span<const RankState> states,
                           const WatchdogOptions& options);

/// The report of a rank without which the job continues: "lockstep: warning: ..." and where it was.
std::string loss_report(const Finding& finding, std::span<const RankState> states,
                        const WatchdogOptions& options);

/// "rank 2 of 4 on host b (pid 123) failed: ...", for crash files: the rank itself has printed its reason.
std::string abort_report(int rank, std::span<const RankState> states, int code, const std::string& reason);

/// "0, 2-4, 9". REQUIRES: ascending.
std::string ranks_text(const std::vector<int>& ranks);

/// "after step 1234, waits 0.3 s in step instruction 4 (...)".
std::string situation_text(const Heartbeat& heartbeat);

}  // namespace lockstep::control
