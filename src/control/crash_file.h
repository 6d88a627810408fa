#pragma once

#include <string>

#include "control/rank_state.h"

namespace lockstep::control {

/// What one rank records when the job fails.
struct CrashRecord {
  int rank = 0;
  RankIdentity who;
  JobDecision decision;
  Heartbeat own;  ///< where this rank was
};

/// `utc`: "2025-01-31T12:00:00Z".
std::string crash_text(const CrashRecord& record, const std::string& utc);

/// Writes `rank-00003.txt` into `directory`, which is made if absent. Failures are ignored, because the job
/// is already ending.
void write_crash_file(const std::string& directory, const CrashRecord& record) noexcept;

}  // namespace lockstep::control
