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
  std::string host;  ///< this rank's host name in messages
  /// An interface or address of rank 0's host to listen at; empty: those that the job's hosts share, or
  /// loopback if all ranks are on one host.
  std::string interface;
  int port = 0;  ///< 0: any free one
  /// Whether this process was told to end (SIGTERM from a launcher whose job is failing). The watchdog's
  /// thread calls it several times a second; may be empty.
  std::function<bool()> termination_requested;
  /// How a rank leaves once the job has failed; default: _exit. Tests pass something else; afterwards the
  /// control plane does nothing more.
  std::function<void(int code)> end_process;
  /// Called if the job continues without a rank of this host, to make sure that its process ends, because it
  /// may be stopped or stuck. May be empty.
  std::function<void(int rank, int64_t pid)> end_lost{};
  /// How a report is printed; default: in one write to stderr.
  std::function<void(std::string_view text)> print{};
  /// Called on every rank but 0 before it connects, with rank 0's addresses ("10.0.0.1:4321, ..."). Rank 0's
  /// port stays open until it returns. For failpoints and tests.
  std::function<void(const std::string& addresses)> before_connect{};
};

/// How ranks communicate before they are connected.
struct Meeting {
  int rank = 0;
  int size = 1;
  /// COLLECTIVE: returns every rank's text, by rank. Throws CommError if one of its messages takes longer
  /// than `timeout`. Not called if there is only one process.
  std::function<std::vector<std::string>(const std::string& own, std::chrono::milliseconds timeout)> exchange;
};

/// The control plane of a job: one TCP connection from every rank to rank 0, independent of MPI. On each rank
/// a thread (the watchdog) serves it, and tells rank 0 several times a second that the rank is alive and
/// where it is. Rank 0 judges: a rank that is lost (its connection closed without a farewell), silent, or
/// stuck ends the job, except in sections in which some ranks can be spared (Muster). The rank is named on
/// stderr once, with its instruction and a line for every rank. Every rank writes a crash file, then leaves
/// by _exit with the code: no destructor and no MPI_Finalize runs, because a stuck lane cannot unwind.
///
/// Only processes that know the job's token, which travels by MPI, are accepted. The port is closed once all
/// ranks are connected. Thread-safety: any thread may call all methods.
class ControlPlane {
 public:
  virtual ~ControlPlane() = default;  ///< ends the thread; without leave() this rank counts as lost

  virtual Progress& progress() = 0;
  virtual Mailbox& mailbox() = 0;
  virtual Muster& muster() = 0;
  /// Until it is called, the defaults of WatchdogOptions apply.
  virtual void configure(const WatchdogOptions& options) = 0;
  /// Sets how errors describe what a rank does: from a Progress entry to "step instruction 17 (backward,
  /// ...)". The watchdog's thread calls it at any time, so it must neither lock nor wait. May be replaced.
  virtual void set_describer(std::function<std::string(const Progress::Entry&)> describe) = 0;
  /// The folder in which each rank writes `rank-00003.txt` when the job fails; empty: none.
  virtual void set_crash_directory(const std::string& directory) = 0;

  /// This rank has failed with `reason`, which it has printed itself. Tells the other ranks, which leave with
  /// the same code. Returns when rank 0 knows it, or after a second; then the caller ends the process.
  virtual void abort(ExitCode code, std::string_view reason) noexcept = 0;
  /// All work is done, and all ranks are known to be here: from now on a closed connection is no loss.
  /// Returns at once. If the process has not ended within a minute, the watchdog ends it (exit 201).
  virtual void leave() = 0;
};

/// COLLECTIVE over the meeting: exchanges rank 0's address and the token, and connects. A single process has
/// a watchdog but does not listen. Throws CommError, on every rank with the same text, which names hosts,
/// addresses and what to change: with ExitCode::usage if rank 0 cannot listen where it should, with
/// ExitCode::unavailable if ranks cannot reach it. An error with another code is of one rank only.
std::unique_ptr<ControlPlane> start_control_plane(const Meeting& meeting, const ControlPlaneOptions& options);

}  // namespace lockstep::control
