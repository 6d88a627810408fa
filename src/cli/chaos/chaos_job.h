#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "jobs/job.h"

namespace lockstep::cli {

/// A training under mpirun, to be started once or several times.
struct ChaosJob {
  int processes = 2;
  std::vector<std::string> arguments;  ///< train ...; --out and those of a start are added
  std::string folder;                  ///< takes what the starts print; the run itself is in folder/run
  double limit_seconds = 0;            ///< a start that takes longer is ended; 0: there is no limit

  std::string run_directory() const { return folder + "/run"; }
  std::string failpoint_log() const { return folder + "/failpoints.log"; }
  /// For a shell: the command with `more` after it, writing where no start of this job has written.
  std::string command_line(const std::vector<std::string>& more) const;
};

/// What is done and observed while the job runs.
struct StartOptions {
  std::vector<std::string> more;      ///< further words of the command
  std::optional<int64_t> preempt_at;  ///< mpirun gets SIGUSR1 once so many steps are complete
  std::optional<int64_t> await_step;  ///< measures the time until a step beyond this one is complete
};

/// How one start went. Times are wall-clock microseconds, as in the failpoint log.
struct StartOutcome : jobs::JobOutcome {
  std::optional<int64_t> preempted_us, awaited_us;
  int64_t resumed_step = 0;  ///< as the job itself says; 0: it began anew
};

/// Runs the job to its end, number `start` of its starts (from 1).
StartOutcome start_job(const ChaosJob& job, int start, const StartOptions& options);

/// The last complete step that a run's metrics.jsonl tells of; 0 if there is none.
int64_t last_step(const std::string& run_directory);
/// Loss, gradient norm and evaluations by "step field", exactly as they were written.
std::map<std::string, double> recorded_values(const std::string& run_directory);
/// When the failpoint acted, by the job's log; nothing if it did not.
std::optional<int64_t> failpoint_time(const ChaosJob& job);

}  // namespace lockstep::cli
