#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "layout/layout.h"
#include "lockstep/error.h"

namespace lockstep::jobs {

/// Where the processes of a job run, if not only on this host.
struct JobPlace {
  std::vector<std::string> starter;  ///< words before mpirun, or before a single process
  std::vector<std::string>
      mpirun_options;  ///< that name hosts; mpirun alone knows them, unless the starter does
};

/// A program that is started from this host, as one process or as several ranks under mpirun, and watched to
/// its end. Commands run trainings by it.
struct ProcessJob {
  int processes = 1;                   ///< 1: without mpirun
  std::string program;                 ///< "": this one
  std::vector<std::string> arguments;  ///< of the program
  JobPlace place = {};
  std::map<std::string, std::string> environment;  ///< beside what mpirun needs
  std::string stdout_path, stderr_path;            ///< what it prints; their folders are made
  double limit_seconds = 0;                        ///< a job that takes longer is ended; 0: there is no limit
  /// Called every few milliseconds while it runs, with the process that was started; may be empty.
  std::function<void(pid_t)> watch;

  /// The executed command line: mpirun, if needed, the program, and its arguments.
  std::vector<std::string> command() const;
};

/// A training as a job's arguments: `train CONFIG --json ...`, or another command that takes the same.
struct TrainingCommand {
  std::string command = "train";
  std::string config;                    ///< its path
  std::vector<std::string> assignments;  ///< of --set
  layout::Layout layout;
  std::string device = "auto";
  bool allow_shared_gpu = false;
  JobPlace place = {};

  std::vector<std::string> arguments() const;
};

/// The result of a job. Times are wall-clock microseconds.
struct JobOutcome {
  std::optional<int> code;  ///< 128 + n if signal n ended it; nothing if it had to be ended
  int64_t began_us = 0, ended_us = 0;
  int leftover_processes = 0;  ///< processes that outlived the started one; they are ended
  std::string output;          ///< stdout
  std::string error;           ///< stderr
};

/// Runs `job` to its end. Afterwards none of its processes is left, even if this throws. Throws IoError if
/// the job cannot be started or its output cannot be written.
JobOutcome run_to_end(const ProcessJob& job);

/// The error of a failed job, with the end of its output. `what` begins the message: "layout 'dp=2':
/// training".
Error job_failure(const std::string& what, const JobOutcome& outcome, const std::string& folder);

/// For commands that start jobs: throws ConfigError under mpirun, and DeviceError if several processes are to
/// start without an mpirun on PATH.
void check_can_start_jobs(const std::string& command, int processes);

/// Wall-clock microseconds since 1970, as in JobOutcome.
int64_t wall_clock_us();

}  // namespace lockstep::jobs
