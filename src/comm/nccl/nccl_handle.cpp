#include "comm/nccl/nccl_handle.h"

#include <fmt/format.h>
#include <sched.h>

#include <chrono>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "comm/nccl/check.h"
#include "lockstep/error.h"

namespace lockstep::comm {
namespace {

/// Of a communicator that only sends and receives: two directions, and a quarter of an NVLink port's
/// bandwidth for each multiprocessor, as NVIDIA states it; what is left computes.
constexpr int kExchangeCtas = 8;

ncclConfig_t config_of(const NcclHandle::Options& options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  if (!options.only_exchanges) return config;
  config.maxCTAs = kExchangeCtas;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  config.nvlsCTAs =
      1;  // of sums by the switches, which cannot be left out of one communicator: as little memory as can be
#endif
  return config;
}

}  // namespace

NcclHandle::NcclHandle(const ncclUniqueId& id, int size, int rank, Deadline deadline, const Options& options)
    : options_(options), rank_(rank), size_(size) {
  cudaGetDevice(&gpu_);
  ncclConfig_t config = config_of(options);
  try {
    {
      std::lock_guard lock(mutex_);
      comm::check(ncclCommInitRankConfig(&comm_, size, id, rank, &config));
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
    comm::check(action(comm_));
  }
  await(deadline);
}

void NcclHandle::check() { state(); }

ncclResult_t NcclHandle::state() {
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr) throw CommError("the communicator was aborted");
  ncclResult_t state = ncclSuccess;
  comm::check(ncclCommGetAsyncError(comm_, &state));
  comm::check(state);
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

void NcclHandle::begin_abort() noexcept { begin_end(ncclCommAbort); }

void NcclHandle::abort() noexcept {
  begin_abort();
  await_end("abort");
}

void NcclHandle::finish(Deadline deadline) noexcept {
  try {
    call(ncclCommFinalize, deadline);
    begin_end(ncclCommDestroy);
    await_end("destroy");
  } catch (const std::exception&) {
    abort();
  }
}

void NcclHandle::begin_end(End end) noexcept {
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return;
  end_deadline_ = deadline_in(options_.end_timeout);
  // It may outlive this handle, and shares nothing with it.
  const auto work = [comm = std::exchange(comm_, nullptr), end, gpu = gpu_] {
    cudaSetDevice(gpu);  // NCCL sets again what it finds, which would take memory of GPU 0
    end(comm);           // whatever it says, there is nothing left to do
  };
  try {
    std::packaged_task<void()> task(work);
    ended_ = task.get_future().share();
    start_thread_without_signals("nccl end", std::move(task)).detach();
  } catch (const std::exception&) {
    ended_ = {};
    work();  // no thread is to be had; kernels that wait for ever would be worse
  }
}

void NcclHandle::await_end(const char* name) noexcept {
  std::unique_lock lock(mutex_);
  const auto ended = ended_;
  const Deadline deadline = end_deadline_;
  lock.unlock();  // whoever asks meanwhile is told that it was aborted
  if (!ended.valid() || ended.wait_until(deadline) == std::future_status::ready) return;
  lock.lock();
  if (std::exchange(told_, true)) return;
  try {
    log_warning(fmt::format(
        "NCCL did not {} the communicator of rank {} of {} within {:.1f} s: kernels may still wait for ranks "
        "that are gone; the GPU is free again when this process has ended",
        name, rank_, size_, std::chrono::duration<double>(options_.end_timeout).count()));
  } catch (const std::exception&) {
    // No memory for a message: nothing else is lost.
  }
}

}  // namespace lockstep::comm
