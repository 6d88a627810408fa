#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "control/mailbox.h"
#include "control/muster.h"
#include "control/progress.h"
#include "control/watchdog_options.h"
#include "lockstep/error.h"

namespace lockstep::control {

struct ControlPlaneOptions {
  std::string host;  ///< this rank's host name, as messages shall call it
  /// An interface or address of rank 0's host to listen at; empty: those that the job's hosts share, or
  /// loopback where all ranks are on one host.
  std::string interface;
  int port = 0;  ///< 0: any free one
  /// Whether this process was told to end (SIGTERM from a launcher whose job is failing). Asked several times
  /// a second, by the watchdog's thread; may be empty.
  std::function<bool()> termination_requested;
  /// How a rank leaves once the job has failed; by default _exit. Tests put something else here: afterwards
  /// the control plane does nothing more.
  std::function<void(int code)> end_process;
  /// Called where the job goes on without a rank of this host, to make sure that its process ends: it may be
  /// stopped, or stuck. May be empty.
  std::function<void(int rank, int64_t pid)> end_lost{};
  /// How a report is printed; by default in one write to stderr.
  std::function<void(std::string_view text)> print{};
  /// Called on every rank but 0 before it connects, with rank 0's addresses ("10.0.0.1:4321, ..."): while it
  /// does not return, rank 0's port stays open. For failpoints and tests.
  std::function<void(const std::string& addresses)> before_connect{};
};

/// How ranks talk before they are connected.
struct Meeting {
  int rank = 0;
  int size = 1;
  /// COLLECTIVE: every rank's text, by rank. Throws CommError if one of the messages that it takes needs
  /// longer than `timeout`. Not called where one process is alone.
  std::function<std::vector<std::string>(const std::string& own, std::chrono::milliseconds timeout)> exchange;
};

/// A job's nerves: one TCP connection of every rank to rank 0, apart from MPI, served by a thread of each
/// rank (the watchdog), which tells rank 0 several times a second that this rank lives and where it is. Rank
/// 0 judges: a rank that is lost (its connection closed without a farewell), silent, or stuck ends the job,
/// but for sections in which some can be spared (Muster).
/// It is named on stderr once, with its instruction and a line for every rank; every rank writes a crash
/// file; then each leaves by _exit with the code: no destructor, no MPI_Finalize, because a stuck lane cannot
/// be unwound.
///
/// Only who knows the job's token, which travels by MPI, is listened to; the port is closed once all ranks
/// are there. Thread-safety: all methods may be called from any thread.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;  ///< ends the thread; without leave() the others take this rank for lost

  virtual Progress& progress() = 0;
  virtual Mailbox& mailbox() = 0;
  virtual Muster& muster() = 0;
  /// Before it is called, WatchdogOptions' defaults hold.
  virtual void configure(const WatchdogOptions& options) = 0;
  /// How errors name what a rank does: from a Progress entry to "step instruction 17 (backward, ...)". Called
  /// by the watchdog's thread while the training thread may be anywhere: must neither lock nor wait. May be
  /// replaced.
  virtual void set_describer(std::function<std::string(const Progress::Entry&)> describe) = 0;
  /// Where each rank leaves `rank-00003.txt` when the job fails; empty: nowhere.
  virtual void set_crash_directory(const std::string& directory) = 0;

  /// This rank has failed with `reason`, which it has printed itself: tells the others, who leave with the
  /// same code. Returns when rank 0 knows it, or after a second; whoever calls then ends the process.
  virtual void abort(ExitCode code, std::string_view reason) noexcept = 0;
  /// All work is done, and all ranks are known to be here: from now on a closed connection is no loss.
  /// Returns at once. The process must have ended within a minute, or the watchdog ends it (exit 201).
  virtual void leave() = 0;
};

/// COLLECTIVE over the meeting: exchanges rank 0's address and the token, and connects. One process alone has
/// a watchdog of its own and listens nowhere. Throws CommError, on every rank with the same text, naming
/// hosts, addresses and what to change: with ExitCode::usage where rank 0 cannot listen where it should,
/// ExitCode::unavailable where ranks cannot reach it. An error with another code is one rank's own.
std::unique_ptr<ControlPlane> start_control_plane(const Meeting& meeting, const ControlPlaneOptions& options);

}  // namespace lockstep::control
