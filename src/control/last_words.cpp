#include "control/last_words.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "base/thread.h"

namespace lockstep::control {

bool run_at_most(std::chrono::milliseconds limit, std::function<void()> work) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto state = std::make_shared<State>();
  try {
    start_thread_without_signals("last words", [state, work = std::move(work)]() mutable {
      work();
      work = nullptr;
      std::lock_guard lock(state->mutex);
      state->done = true;
      state->changed.notify_all();
    }).detach();
  } catch (const std::exception&) {
    return false;  // a system without room for a thread is left in silence
  }
  std::unique_lock lock(state->mutex);
  return state->changed.wait_for(lock, limit, [&] { return state->done; });
}

void print_to_stderr(std::string_view text) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const std::string whole = (terminal ? "\r\033[K" : "") + std::string(text);
  write_all(STDERR_FILENO, whole);
}

bool write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const auto count = ::write(descriptor, text.data(), text.size());
    if (count > 0) text.remove_prefix(static_cast<size_t>(count));
    if (count >= 0 || errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) return false;
    pollfd polled{descriptor, POLLOUT, 0};
    if (::poll(&polled, 1, -1) < 0 && errno != EINTR) return false;
  }
  return true;
}

}  // namespace lockstep::control
