#include "base/mapped_memory.h"

#include <csignal>
#include <mutex>

namespace lockstep {
namespace detail {

constinit thread_local MappedRead* mapped_read = nullptr;

}  // namespace detail

namespace {

struct sigaction before {};

void leave_read(int signal, siginfo_t* info, void* /*context*/) {
  detail::MappedRead* const read = detail::mapped_read;
  const auto* const at = static_cast<const std::byte*>(info->si_addr);
  if (read != nullptr && at >= read->begin && at < read->begin + read->size_bytes) siglongjmp(read->out, 1);
  // Of others: the same access fails once more, and is theirs.
  ::sigaction(signal, &before, nullptr);
}

}  // namespace

void handle_missing_pages() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  struct sigaction now {};
  // Others may have taken the signal since.
  if (::sigaction(SIGBUS, nullptr, &now) != 0 ||
      ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == leave_read))
    return;
  before = now;
  struct sigaction action {};
  action.sa_sigaction = leave_read;
  sigemptyset(&action.sa_mask);
  // Not blocked when a read is left by a jump, which restores no mask.
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace lockstep
