#include "base/mapped_memory.h"

#include <array>
#include <csignal>
#include <mutex>

namespace lockstep {
namespace detail {

constinit thread_local MappedRead* mapped_read = nullptr;

}  // namespace detail

namespace {

/// Who handled the signal before. The first one stays; the places of later ones are used in turn, so that a
/// handler which runs meanwhile reads none that is being written.
struct Others {
  std::array<struct sigaction, 8> kept{};
  std::atomic<size_t> latest = 0;
  std::atomic<bool> is_installed = false, was_asked = false;
};
Others others;
std::mutex changes;

/// The latest one; the first one if the latest has handed the signal back.
const struct sigaction& next_handler() {
  return others.kept[others.was_asked.exchange(true) ? 0 : others.latest.load()];
}

void leave_read(int signal, siginfo_t* info, void* /*context*/) {
  detail::MappedRead* const read = detail::mapped_read;
  const bool is_page = info->si_code == BUS_ADRERR || info->si_code == BUS_MCEERR_AR;
  const auto* const at = static_cast<const std::byte*>(info->si_addr);
  if (is_page && read != nullptr && at >= read->begin && at < read->begin + read->size_bytes)
    siglongjmp(read->out, 1);
  struct sigaction own {};
  ::sigaction(signal, &next_handler(), &own);
  // A fault of others: the same access fails once more, and is theirs. What was sent does not come again.
  if (info->si_code > 0) return;
  ::raise(signal);
  ::sigaction(signal, &own, nullptr);
  others.was_asked = false;
}

bool is_own(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == leave_read;
}

}  // namespace

void handle_missing_pages() {
  const std::lock_guard lock(changes);
  struct sigaction now {};
  // Others may have taken the signal since.
  if (::sigaction(SIGBUS, nullptr, &now) != 0 || is_own(now)) return;
  const size_t place = others.is_installed ? others.latest % (others.kept.size() - 1) + 1 : 0;
  others.kept[place] = now;
  others.latest = place;
  others.is_installed = true;
  others.was_asked = false;
  struct sigaction action {};
  action.sa_sigaction = leave_read;
  sigemptyset(&action.sa_mask);
  // Not blocked when a read is left by a jump, which restores no mask.
  action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
  ::sigaction(SIGBUS, &action, nullptr);
}

void forget_later_handlers() {
  const std::lock_guard lock(changes);
  others.latest = 0;
}

}  // namespace lockstep
