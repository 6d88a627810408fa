#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "control/progress.h"
#include "device/device.h"
#include "program/program.h"
#include "run/actions.h"

namespace lockstep::run {

struct ExecutorOptions {
  /// How long a rank waits for its peers; absent: as long as it takes, since a watchdog looks after them.
  std::optional<std::chrono::milliseconds> communication_timeout = std::chrono::minutes(5);
  control::Progress* progress = nullptr;  ///< told of each instruction; may be null
  int program_number = 0;                 ///< by which `progress` knows the program
  /// Whether the device writes to `progress` itself where its lanes are (Device::share_host_memory). If not,
  /// the host looks at their events, whenever it waits for the device.
  bool device_tells = true;
  /// Calls of ops' kernels (of one to a few kernels each) that a lane may have unfinished, on a device with
  /// memory of its own; at least RunAhead::kParts. A driver takes about a thousand kernels before launches
  /// block in it. Even if each call is done in 3 us, the host may be held up for 300 us before the device has
  /// nothing to do.
  int most_ahead = 128;
  /// Between two looks at its communication, of one thread (patience.h). 0: it never sleeps.
  std::chrono::microseconds longest_nap{0};
  /// Called on the thread that runs it whenever that looks after its communication; may be empty. What goes
  /// on beside the program: a server of the same rank, messages under way. Does a bounded amount of work, and
  /// is true if there may be more of it: who waits calls again without a rest.
  std::function<bool()> alongside;
  /// On one thread: what instructions of compute and copy lanes take so many times as long, by sleeping
  /// afterwards.
  double slowdown = 1;
  /// Called on the thread that runs it before each instruction starts, with its StepInputs::iteration; may be
  /// empty.
  std::function<void(uint64_t iteration, int instruction)> before;
  /// Where lanes are streams: told once of an iteration's error, before communicators are aborted, from which
  /// a library may never return; may be empty.
  std::function<void(const std::exception_ptr& error)> failed;
};

/// What an iteration spent waiting.
struct IterationTimes {
  /// No compute lane worked, and one that had all else waited for communication: for other ranks, for the
  /// link, for sums in a communication lane. On one thread: no instruction of a compute or copy lane could
  /// run.
  std::optional<double> exposed_communication_ms;
  /// On one thread: instructions of compute and copy lanes ran.
  std::optional<double> busy_ms;
};

/// What a rank that is at an instruction of this class is doing, for its watchdog.
control::Activity activity_of(program::DeadlineClass deadline);

/// What errors add to an instruction of an earlier iteration than the one that the caller is in.
std::string left_over_text(const program::Program& program);

/// Runs a program, iteration by iteration. It knows instructions, lanes and dependencies, and nothing of the
/// strategy that wrote them. Errors carry the instruction, its tensor's segment, micro-batch and rank; after
/// one, nothing is left to finish.
///
/// Iterations overlap. run() returns as soon as the iteration's report is complete (report_instructions()).
/// What is left of it goes on as dependencies and lanes allow, on one thread within the next call only, but
/// is complete before the iteration after the next one begins. Thread-safety: one thread.
class Executor {
 public:
  virtual ~Executor() = default;
  /// COLLECTIVE if the program communicates. Runs the next iteration up to its report.
  virtual void run(const StepInputs& inputs) = 0;
  /// COLLECTIVE if the program communicates. Completes everything: before anybody else uses the program's
  /// memory or its communicators, and before the executor is destroyed.
  virtual void finish() = 0;
  /// Of the last iteration of which they are known: after finish(), of the last one.
  virtual IterationTimes last_times() const = 0;
};

/// Everything on the calling thread: instructions of compute and copy lanes run in program order as they
/// become ready; communication lanes are polled between kernels. What a busy core wants: a thread of its own
/// for communication was measured to hide nothing there. `program` and `context` must outlive the executor;
/// `observer` may be null.
std::unique_ptr<Executor> make_inline_executor(const program::Program& program,
                                               const ExecutionContext& context,
                                               const ExecutorOptions& options,
                                               const KernelObserver* observer = nullptr);

/// Every lane is a stream of `device`, ordered against the others by events alone: what runs on devices whose
/// streams work by themselves (and, on the asynchronous CPU device, proves that the program's dependencies
/// suffice).
std::unique_ptr<Executor> make_stream_executor(const program::Program& program,
                                               const ExecutionContext& context,
                                               const ExecutorOptions& options, device::Device& device,
                                               const KernelObserver* observer = nullptr);

}  // namespace lockstep::run
