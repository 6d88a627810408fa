#include "comm/nccl/nccl_handle.h"

#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <thread>

#include "comm/nccl/check.h"
#include "lockstep/error.h"

namespace lockstep {

NcclHandle::NcclHandle(const ncclUniqueId& id, int size, int rank, Deadline deadline) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  try {
    {
      std::lock_guard lock(mutex_);
      lockstep::check(ncclCommInitRankConfig(&comm_, size, id, rank, &config));
    }
    await(deadline);
  } catch (const CommError&) {
    abort();  // the destructor of what was not constructed does not run
    throw;
  }
}

void NcclHandle::call(const std::function<ncclResult_t(ncclComm_t)>& action, Deadline deadline) {
  {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) throw CommError("the communicator was aborted");
    lockstep::check(action(comm_));
  }
  await(deadline);
}

void NcclHandle::check() { state(); }

ncclResult_t NcclHandle::state() {
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr) throw CommError("the communicator was aborted");
  ncclResult_t state = ncclSuccess;
  lockstep::check(ncclCommGetAsyncError(comm_, &state));
  lockstep::check(state);
  return state;
}

void NcclHandle::await(Deadline deadline) {
  const auto started = Clock::now();
  while (state() == ncclInProgress) {
    const auto now = Clock::now();
    if (now >= deadline)
      throw CommError(
          fmt::format(
              "NCCL has not connected this rank with the others within {:.1f} s; look for ranks that are "
              "not here yet, and at the network between the hosts (NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME)",
              milliseconds_between(started, now) / 1000),
          ExitCode::hang);
    // An operation is taken in within microseconds; connecting takes a second.
    if (now - started < std::chrono::milliseconds(1))
      sched_yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void NcclHandle::abort() noexcept {
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  ncclCommAbort(comm_);  // whatever it says, there is nothing left to do
  comm_ = nullptr;
}

void NcclHandle::finish(Deadline deadline) noexcept {
  try {
    call(ncclCommFinalize, deadline);
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) return;
    ncclCommDestroy(comm_);
    comm_ = nullptr;
  } catch (const std::exception&) {
    abort();
  }
}

}  // namespace lockstep
