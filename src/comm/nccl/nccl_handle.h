#pragma once

#include <nccl.h>

#include <functional>
#include <future>
#include <mutex>
#include <string>

#include "base/clock.h"

namespace lockstep::comm {

/// Owns an ncclComm_t in non-blocking mode: no call of NCCL waits for other ranks, and long operations are
/// polled against a deadline. Errors are CommErrors. Thread-safety: any thread may call check() and abort(),
/// also while another thread is in call(); the rest is for one thread.
///
/// NCCL starts a thread for every operation of such a communicator. A blocking communicator needs no threads,
/// but making it may wait for ranks that never come. Its calls also cannot be ended while they wait: for the
/// other of two ranks in their first exchange, or for room in a full queue of the GPU.
///
/// ncclCommAbort and ncclCommDestroy are exceptions (by the sources of NCCL 2.22 to 2.30; earlier versions
/// behave in the same way). Also in this mode they do all their work in the calling thread, and return once
/// the communicator is freed. Nothing can end them: they join the thread of a call in flight, wait for NCCL's
/// own streams and threads, and free GPU memory, which waits for all kernels of the GPU, including those of
/// other communicators. So each of these calls has its own thread here, whose end is awaited until a
/// deadline. Several communicators of one GPU are aborted at the same time (abort_all()), because the kernels
/// of one can delay the other's abort.
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
  /// Aborts, unless aborted or finished.
  ~NcclHandle() { abort(); }
  NcclHandle(const NcclHandle&) = delete;

  /// Runs `action` and waits until NCCL has accepted it; then its kernels are in their streams.
  void call(const std::function<ncclResult_t(ncclComm_t)>& action, Deadline deadline);
  /// Throws if NCCL has had an error, or if the handle is aborted.
  void check();
  /// Begins to end kernels that wait for other ranks. From now on all other calls throw. Does not wait.
  void begin_abort() noexcept;
  /// The same, but returns when NCCL uses neither streams nor memory any more. If that takes longer than the
  /// options say, it prints a warning, and NCCL continues by itself. Code that then destroys streams or frees
  /// GPU memory may wait for ever, until the watchdog ends a process that has reported a failure and does not
  /// exit. Without a watchdog, the user must end it.
  void abort() noexcept;
  /// Leaves in order, or aborts if that does not succeed before `deadline`. Waits until NCCL has freed the
  /// communicator, as abort() does. REQUIRES: no operation is outstanding.
  void finish(Deadline deadline) noexcept;

 private:
  using End = ncclResult_t (*)(ncclComm_t);
  ncclResult_t state();  ///< throws if there is an error
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
