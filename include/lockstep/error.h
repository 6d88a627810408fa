#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace lockstep {

/// The exit code of a process. docs/cli.md lists the codes; they are never renumbered.
enum class ExitCode : int {
  done = 0,
  usage = 2,          ///< bad config or command line
  data = 65,          ///< corrupt or mismatched data or checkpoint
  unavailable = 69,   ///< a device or library is missing
  internal = 70,      ///< a bug in lockstep, or too many non-finite steps
  disk = 74,          ///< a file could not be read or written
  interrupted = 130,  ///< SIGINT, with a checkpoint saved
  terminated =
      143,  ///< SIGTERM or a stop request; a checkpoint is saved, but for requests while data are opened
  peer_lost = 200,
  hang = 201,
  ended_at_once = 202,  ///< ended by a second stop request before the first was served: nothing was saved
};

/// Base of all errors that lockstep throws. The message says what was expected, what was found, where, and
/// what to do.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode code = ExitCode::internal)
      : std::runtime_error(message), code_(code) {}
  ExitCode code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

struct ConfigError : Error {
  explicit ConfigError(const std::string& message) : Error(message, ExitCode::usage) {}
};
struct DataError : Error {
  explicit DataError(const std::string& message) : Error(message, ExitCode::data) {}
};
struct DeviceError : Error {
  explicit DeviceError(const std::string& message) : Error(message, ExitCode::unavailable) {}
};
/// After a CommError the communicator that threw it is dead.
struct CommError : Error {
  explicit CommError(const std::string& message, ExitCode code = ExitCode::peer_lost)
      : Error(message, code) {}
};
struct CheckpointError : Error {
  explicit CheckpointError(const std::string& message) : Error(message, ExitCode::data) {}
};
/// Opening, reading or writing a file failed.
struct IoError : Error {
  explicit IoError(const std::string& message) : Error(message, ExitCode::disk) {}
};
/// An internal invariant does not hold: always a bug in lockstep.
struct InternalError : Error {
  explicit InternalError(const std::string& message) : Error(message, ExitCode::internal) {}
};

/// Throws ConfigError with `message` if `condition` is false. For mistakes of the caller.
inline void require(bool condition, std::string_view message) {
  if (!condition) throw ConfigError(std::string(message));
}

}  // namespace lockstep
#pragma GCC visibility pop
