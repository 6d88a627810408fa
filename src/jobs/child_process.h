#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::jobs {

struct ChildProcess {
  std::vector<std::string> command;                ///< found on PATH
  std::map<std::string, std::string> environment;  ///< set unless the variable is already set
  std::string stdout_path, stderr_path;            ///< files that take what it writes
};

/// A running program. It is ended with this process and with this object.
class RunningChild {
 public:
  /// Throws IoError if it cannot be started.
  explicit RunningChild(const ChildProcess& child);
  ~RunningChild();
  RunningChild(const RunningChild&) = delete;

  pid_t pid() const { return pid_; }
  /// Its exit code once it has ended, 128 + n if signal n ended it; nothing while it runs.
  std::optional<int> poll();

 private:
  pid_t pid_ = 0;
  std::string name_;
  std::optional<int> code_;
};

/// Variables that mpirun needs for several ranks on one machine: to run as root, to have more ranks than
/// cores, to let ranks use every core (by default each is pinned to one, with all its threads), and to let
/// them yield cores while they wait.
std::map<std::string, std::string> mpirun_environment();

/// The running program's own file.
std::string own_program();
/// Whether a program of this name is on PATH.
bool on_path(const std::string& program);

}  // namespace lockstep::jobs
