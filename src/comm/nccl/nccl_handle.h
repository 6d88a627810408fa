#pragma once

#include <nccl.h>

#include <functional>
#include <future>
#include <mutex>
#include <string>

#include "base/clock.h"

namespace lockstep::comm {

/// Owns an ncclComm_t in non-blocking mode: no call of NCCL waits for other ranks, and what takes time is
/// polled against a deadline. Errors are CommErrors. Thread-safety: check() and abort() from any thread, also
/// while another thread is in call(); the rest by one thread.
///
/// NCCL starts a thread for every operation of such a communicator. One that blocks does without, but which
/// of the two it is, is settled when it is made, which may wait for ranks that never come; and its calls
/// cannot be ended where they wait after all: for the other of two ranks that first exchange something, for
/// room in a full queue of the GPU.
///
/// ncclCommAbort and ncclCommDestroy are the exception (by the sources of NCCL 2.22 to 2.30; before, they
/// behave alike): in this mode too they do all their work in the calling thread, and return once the
/// communicator is freed. Nothing can be asked of it afterwards, and nothing ends them: they join the thread
/// of a call that is under way, wait for NCCL's own streams and threads, and free memory of the GPU, which
/// waits for all of its kernels, those of other communicators among them. So each has a thread here, whose
/// end is waited for until a deadline. Several communicators of one GPU are aborted at the same time
/// (abort_all()), because the kernels of one can hold up the other's abort.
class NcclHandle {
 public:
  struct Options {
    /// How long abort() and finish() wait for NCCL to free the communicator.
    std::chrono::milliseconds end_timeout = std::chrono::seconds(5);
    /// Only sends and receives will be called.
    bool only_exchanges = false;
  };

  /// COLLECTIVE: connects `size` ranks that have the same `id`. The GPU is the calling thread's current one.
  NcclHandle(const ncclUniqueId& id, int size, int rank, Deadline deadline, const Options& options);
  NcclHandle(const ncclUniqueId& id, int size, int rank, Deadline deadline)
      : NcclHandle(id, size, rank, deadline, Options{}) {}
  /// Aborts what is neither aborted nor finished.
  ~NcclHandle() { abort(); }
  NcclHandle(const NcclHandle&) = delete;

  /// Runs `action` and waits until NCCL has taken it in: then its kernels are in their streams.
  void call(const std::function<ncclResult_t(ncclComm_t)>& action, Deadline deadline);
  /// Throws where NCCL has met an error, or the handle is aborted.
  void check();
  /// Sets out to end kernels that wait for other ranks; everything else throws from now on. Does not wait.
  void begin_abort() noexcept;
  /// The same, and returns when NCCL uses neither streams nor memory any more. If that takes longer than the
  /// options say, counted from its begin, a warning says so, and NCCL goes on by itself. Whoever then
  /// destroys streams or frees memory of the GPU may wait for ever, until the watchdog ends a process that
  /// has told of a failure and does not leave; without a watchdog, whoever started it has to.
  void abort() noexcept;
  /// Leaves in order; aborts where that does not succeed before `deadline`. Waits until NCCL has freed the
  /// communicator, as abort() does. REQUIRES: no operation is outstanding.
  void finish(Deadline deadline) noexcept;

 private:
  using End = ncclResult_t (*)(ncclComm_t);
  ncclResult_t state();  ///< throws where there is an error
  void await(Deadline deadline);
  void begin_end(End end) noexcept;  ///< once; later calls do nothing
  void await_end(const char* name) noexcept;

  const Options options_;
  int rank_, size_, gpu_ = 0;
  std::mutex mutex_;  // guards comm_, and NCCL's calls on it: its end frees what they use; and ended_
  ncclComm_t comm_ = nullptr;       // null once aborted or finished
  std::shared_future<void> ended_;  // of what frees it; invalid before
  Deadline end_deadline_;           // of waiting for that
  bool told_ = false;               // that it has passed
};

}  // namespace lockstep::comm
