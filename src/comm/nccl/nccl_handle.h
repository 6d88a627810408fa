#pragma once

#include <nccl.h>

#include <functional>
#include <mutex>
#include <string>

#include "base/clock.h"

namespace lockstep {

/// Owns an ncclComm_t in non-blocking mode: no call of NCCL waits for other ranks, and what takes time is
/// polled against a deadline. Errors are CommErrors. Thread-safety: check() and abort() from any thread, also
/// while another thread is in call(); the rest by one thread.
///
/// NCCL starts a thread for every operation of such a communicator. One that blocks does without, but which
/// of the two it is, is settled when it is made, which may wait for ranks that never come; and its calls
/// cannot be ended where they wait after all: for the other of two ranks that first exchange something, for
/// room in a full queue of the GPU. ncclCommAbort frees what such a call still uses.
class NcclHandle {
 public:
  /// COLLECTIVE: connects `size` ranks that have the same `id`. The GPU is the calling thread's current one.
  NcclHandle(const ncclUniqueId& id, int size, int rank, Deadline deadline);
  ~NcclHandle() { abort(); }
  NcclHandle(const NcclHandle&) = delete;

  /// Runs `action` and waits until NCCL has taken it in: then its kernels are in their streams.
  void call(const std::function<ncclResult_t(ncclComm_t)>& action, Deadline deadline);
  /// Throws where NCCL has met an error, or the handle is aborted.
  void check();
  /// Ends kernels that wait for other ranks; afterwards everything throws. Once; later calls do nothing.
  void abort() noexcept;
  /// Leaves in order; aborts where that does not succeed before `deadline`. REQUIRES: no operation is
  /// outstanding.
  void finish(Deadline deadline) noexcept;

 private:
  ncclResult_t state();  ///< throws where there is an error
  void await(Deadline deadline);

  std::mutex mutex_;           // guards comm_, and NCCL's calls on it: abort() frees what they use
  ncclComm_t comm_ = nullptr;  // null once aborted or finished
};

}  // namespace lockstep
