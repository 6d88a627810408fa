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

namespace lockstep::cli {

/// Where the processes of a job run, if not on this host alone.
struct JobPlace {
  std::vector<std::string> starter;  ///< words before mpirun, or before a single process
  std::vector<std::string>
      mpirun_options;  ///< that name hosts; mpirun alone knows them, unless the starter does
};

/// A program that is started on this host, as one process or as several ranks under mpirun, and watched to
/// its end: how commands run trainings of their own.
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

  /// What is executed: mpirun, where it is needed, the program, and its arguments.
  std::vector<std::string> command() const;
};

/// A training as a job's arguments: `train CONFIG --json ...`.
struct TrainingCommand {
  std::string config;                    ///< its path
  std::vector<std::string> assignments;  ///< of --set
  layout::Layout layout;
  std::string device = "auto";
  bool allow_shared_gpu = false;
  JobPlace place = {};

  std::vector<std::string> arguments() const;
};

/// How a job went. Times are wall-clock microseconds.
struct JobOutcome {
  std::optional<int> code;  ///< 128 + n where signal n ended it; nothing if it had to be ended
  int64_t began_us = 0, ended_us = 0;
  int leftover_processes = 0;  ///< that outlived the one that was started; they are ended
  std::string output;          ///< stdout
  std::string error;           ///< stderr
};

/// Runs `job` to its end. Afterwards no process of it is left, also where this throws. Throws IoError where
/// it cannot be started or its output cannot be written.
JobOutcome run_to_end(const ProcessJob& job);

/// That a job failed, with the end of what it said. `what` begins the message: "layout 'dp=2': training".
Error job_failure(const std::string& what, const JobOutcome& outcome, const std::string& folder);

/// Refuses what no command that starts jobs can do: to run under mpirun itself (ConfigError), or to start
/// several processes without mpirun (DeviceError).
void check_can_start_jobs(const std::string& command, int processes);

/// Words as a POSIX shell takes them: in quotes where they must be.
std::string shell_word(std::string_view word);
std::string shell_line(const std::vector<std::string>& words);

/// Wall-clock microseconds since 1970, as in JobOutcome.
int64_t wall_clock_us();

}  // namespace lockstep::cli
