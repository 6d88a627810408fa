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
#include "run/stamp_recorder.h"
#include "run/work_times.h"

namespace lockstep::run {

struct ExecutorOptions {
  /// How long a rank waits for its peers; absent: without limit, because a watchdog observes them.
  std::optional<std::chrono::milliseconds> communication_timeout = std::chrono::minutes(5);
  control::Progress* progress = nullptr;  ///< told of each instruction; may be null
  int program_number = 0;                 ///< number of the program for `progress`
  /// Whether the device itself writes the positions of its lanes to `progress` (Device::share_host_memory).
  /// If not, the host checks the lanes' events whenever it waits for the device.
  bool device_tells = true;
  /// The most unfinished calls of ops' kernels (of one to a few kernels each) of a lane, on a device with its
  /// own memory; at least RunAhead::kParts. A driver accepts about a thousand kernels before launches block.
  /// Even if each call takes 3 us, the host may be delayed for 300 us before the device has nothing to do.
  int most_ahead = 128;
  /// The longest sleep of one thread between two polls of its communication (patience.h). 0: it never sleeps.
  std::chrono::microseconds longest_nap{0};
  /// Called on the thread that runs it whenever that looks after its communication; may be empty. What goes
  /// on beside the program: a server of the same rank, messages under way. Does a bounded amount of work, and
  /// is true if there may be more of it: who waits calls again without a rest.
  std::function<bool()> alongside;
  /// On one thread: what instructions of compute and copy lanes take so many times as long, by sleeping
  /// afterwards.
  double slowdown = 1;
  /// Called on the executor's thread before each instruction, with its StepInputs::iteration; may be empty.
  std::function<void(uint64_t iteration, int instruction)> before;
  /// Gets the times of the iterations that it wants; null: nobody wants any.
  StampRecorder* recorder = nullptr;
  /// If lanes are streams: whether to sample the times of kernels (sampled_times()).
  bool samples_kernels = false;
  /// If lanes are streams: called once with an iteration's error, before communicators are aborted, because a
  /// library may never return from that; may be empty.
  std::function<void(const std::exception_ptr& error)> failed;
};

/// Waiting and computing times of an iteration.
struct IterationTimes {
  /// Time in which no compute lane worked, and at least one waited only for communication: for other ranks,
  /// for the link, for sums in a communication lane. On one thread: no instruction of a compute or copy lane
  /// could run.
  std::optional<double> exposed_communication_ms;
  /// On one thread: time in which instructions of compute and copy lanes ran.
  std::optional<double> busy_ms;
};

/// The activity of a rank at an instruction of this class, for its watchdog.
control::Activity activity_of(program::DeadlineClass deadline);

/// The note in errors about an instruction of an earlier iteration than the caller's.
std::string left_over_text(const program::Program& program);

/// Runs a program, iteration by iteration. It knows instructions, lanes and dependencies, but not the
/// strategy that wrote them. Errors name the instruction, its tensor's segment, micro-batch and rank; after
/// an error nothing is left to finish.
///
/// Iterations overlap. run() returns as soon as the iteration's report is complete (report_instructions()).
/// The rest continues as dependencies and lanes allow (on one thread only within the next call), but is
/// complete before the iteration after the next one begins. Thread-safety: one thread.
class Executor {
 public:
  virtual ~Executor() = default;
  /// COLLECTIVE if the program communicates. Runs the next iteration up to its report.
  virtual void run(const StepInputs& inputs) = 0;
  /// COLLECTIVE if the program communicates. Completes everything. Call it before other code uses the
  /// program's memory or communicators, and before the executor is destroyed.
  virtual void finish() = 0;
  /// Times of the last iteration for which they are known; after finish(), of the last one.
  virtual IterationTimes last_times() const = 0;
  /// Of all iterations so far; null if lanes do not share one thread.
  virtual const WorkTimes* work_times() const { return nullptr; }
  /// Of iterations that were sampled, if lanes are streams; null: nobody asked for any.
  virtual const SampledTimes* sampled_times() const { return nullptr; }
};

/// Runs everything on the calling thread. Instructions of compute and copy lanes run in program order as they
/// become ready; communication lanes are polled between kernels. This suits a busy core: there a separate
/// thread for communication was measured to hide nothing. `program` and `context` must outlive the executor;
/// `observer` may be null.
std::unique_ptr<Executor> make_inline_executor(const program::Program& program,
                                               const ExecutionContext& context,
                                               const ExecutorOptions& options,
                                               const KernelObserver* observer = nullptr);

/// Makes every lane a stream of `device`; only events order lanes against each other. For devices whose
/// streams work by themselves. On the asynchronous CPU device it tests that the program's dependencies
/// suffice.
std::unique_ptr<Executor> make_stream_executor(const program::Program& program,
                                               const ExecutionContext& context,
                                               const ExecutorOptions& options, device::Device& device,
                                               const KernelObserver* observer = nullptr);

}  // namespace lockstep::run
