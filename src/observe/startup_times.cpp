#include "observe/startup_times.h"

#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <numeric>
#include <string>
#include <utility>

#include "base/index.h"
#include "base/text.h"

namespace lockstep::observe {

std::string_view name_of(StartupPart part) {
  static constexpr std::array<std::string_view, kStartupParts> kNames{
      "launch", "config",    "device",        "programs",   "data",       "kernels",
      "memory", "agreement", "communicators", "parameters", "first_step", "other"};
  return nth(kNames, part);
}

double StartupMilliseconds::total() const { return std::accumulate(parts.begin(), parts.end(), 0.0); }

void StartupTimes::end(StartupPart part, Clock::time_point now) {
  if (complete_) return;
  milliseconds_[part] += milliseconds_between(std::exchange(last_, now), now);
  complete_ = part == StartupPart::first_step;
}

double start_ticks(std::string_view stat) {
  // The name, in parentheses, may hold blanks and parentheses; the start is the 20th field after it.
  const auto fields = split(trim(stat.substr(stat.rfind(')') + 1)), ' ');
  return std::strtod(fields.at(19).c_str(), nullptr);
}

Clock::time_point process_start() {
  const double started_seconds =
      start_ticks(read_text_file("/proc/self/stat")) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  // Ticks are counted while the system sleeps, too.
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  const double age_seconds =
      static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) - started_seconds;
  return Clock::now() -
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(age_seconds));
}

}  // namespace lockstep::observe
