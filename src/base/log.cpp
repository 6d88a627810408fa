#include "base/log.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

namespace lockstep {
namespace {

std::atomic<LogLevel> lowest_level{LogLevel::info};
std::atomic<int> log_rank{0};
std::atomic<int> log_world_size{1};

struct Hook {
  std::mutex mutex;  // held while a line is written
  std::function<void()> call;
};
/// Never destroyed: threads may log until the process ends.
Hook& before_log() {
  static auto* hook = new Hook;
  return *hook;
}

}  // namespace

void set_log_level(LogLevel lowest) { lowest_level = lowest; }
LogLevel log_level() { return lowest_level; }
void set_log_rank(int rank, int world_size) {
  log_rank = rank;
  log_world_size = world_size;
}

void set_before_log(std::function<void()> hook) {
  std::lock_guard lock(before_log().mutex);
  before_log().call = std::move(hook);
}

std::string printable(std::string_view text) {
  std::string shown;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters of two bytes.
    const bool is_long =
        byte == 0xc2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xe0) == 0x80;
    if (is_long) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
    } else if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f) {
      shown += fmt::format("\\x{:02x}", byte);
    } else {
      shown += text[i];
    }
  }
  return shown;
}

void log(LogLevel level, std::string_view message) {
  if (level < lowest_level.load()) return;
  const char* kind = level == LogLevel::warning ? "warning: " : level == LogLevel::error ? "error: " : "";
  const std::string rank = log_world_size > 1 ? fmt::format("[rank {}] ", log_rank.load()) : "";
  const std::string line = fmt::format("{}{}{}\n", rank, kind, printable(message));
  std::lock_guard lock(before_log().mutex);
  if (before_log().call) before_log().call();
  // One write per line: lines of several processes on one terminal stay whole.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace lockstep
