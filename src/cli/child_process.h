#pragma once

#include <map>
#include <string>
#include <vector>

namespace lockstep {

struct ChildProcess {
  std::vector<std::string> command;                ///< found on PATH
  std::map<std::string, std::string> environment;  ///< set where the variable is not set already
  std::string stdout_path, stderr_path;            ///< files that take what it writes
};

/// Runs a program to its end and returns its exit code; 128 + n where signal n ended it. It is ended with
/// this process. Throws IoError where it cannot be started.
int run_child(const ChildProcess& child);

/// What mpirun needs for several ranks on one machine: to run as root at all, more ranks than cores, ranks
/// that may use every core (by default each is pinned to one, with all its threads) and give theirs up while
/// they wait.
std::map<std::string, std::string> mpirun_environment();

/// The running program's own file.
std::string own_program();
/// Whether a program of this name is on PATH.
bool on_path(const std::string& program);

}  // namespace lockstep
