#include "comm/control/last_words.h"

#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace lockstep {

void run_at_most(std::chrono::milliseconds limit, std::function<void()> work) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto state = std::make_shared<State>();
  try {
    std::thread([state, work = std::move(work)]() mutable {
      work();
      work = nullptr;
      std::lock_guard lock(state->mutex);
      state->done = true;
      state->changed.notify_all();
    }).detach();
  } catch (const std::exception&) {
    return;  // a system without room for a thread is left in silence
  }
  std::unique_lock lock(state->mutex);
  state->changed.wait_for(lock, limit, [&] { return state->done; });
}

void print_to_stderr(std::string_view text) {
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const std::string whole = (terminal ? "\r\033[K" : "") + std::string(text);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, whole.data(), whole.size());
}

}  // namespace lockstep
