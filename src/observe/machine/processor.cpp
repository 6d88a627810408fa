#include "observe/machine/processor.h"

#include <string>
#include <vector>

#include "base/text.h"
#include "observe/machine/text_numbers.h"

namespace lockstep::observe {

std::optional<HostProcessorTime> host_processor_time(std::string_view stat, double ticks_per_second) {
  // cpu user nice system idle iowait irq softirq steal guest guest_nice; guests are part of user and nice.
  constexpr size_t kIdle = 4, kWaitingForDisk = 5, kSteal = 8;
  std::optional<HostProcessorTime> time;
  for (const std::string& line : split(stat, '\n')) {
    const auto words = words_of(line);
    if (words.empty() || !words[0].starts_with("cpu")) continue;
    if (words[0] != "cpu") {
      if (time) ++time->cores;
      continue;
    }
    if (words.size() <= kWaitingForDisk) return std::nullopt;
    time.emplace();
    for (size_t i = 1; i < words.size() && i <= kSteal; ++i) {
      const auto ticks = number_in(words[i]);
      if (!ticks) return std::nullopt;
      time->total += *ticks / ticks_per_second;
      if (i == kIdle || i == kWaitingForDisk) time->idle += *ticks / ticks_per_second;
      if (i == kWaitingForDisk) time->waiting_for_disk = *ticks / ticks_per_second;
    }
  }
  return time;
}

std::optional<double> process_processor_seconds(std::string_view stat, double ticks_per_second) {
  // The name, in parentheses, may hold anything. After it come state, and from there on numbers: utime and
  // stime are the 12th and 13th words behind the name (proc(5): 14 and 15).
  constexpr size_t kUser = 11, kSystem = 12;
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos) return std::nullopt;
  const auto words = words_of(stat.substr(name_end + 1));
  if (words.size() <= kSystem) return std::nullopt;
  const auto user = number_in(words[kUser]), system = number_in(words[kSystem]);
  if (!user || !system) return std::nullopt;
  return (*user + *system) / ticks_per_second;
}

}  // namespace lockstep::observe
