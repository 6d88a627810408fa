#include "control/progress_observer.h"

#include <fmt/format.h>

#include "base/index.h"

namespace lockstep::control {
namespace {

constexpr size_t kLongestText = 400;

std::string describe_entry(const Progress::Entry& entry,
                           const std::function<std::string(const Progress::Entry&)>& describe) {
  std::string text = describe ? describe(entry)
                              : fmt::format("program {}, instruction {}", entry.program, entry.instruction);
  if (text.size() > kLongestText) text = text.substr(0, kLongestText) + "...";
  return text;
}

}  // namespace

ProgressObserver::ProgressObserver(const Progress& progress, Clock::time_point now) : progress_(progress) {
  for (int slot = 0; slot < Progress::kSlots; ++slot) nth(seen_, slot) = {progress_.at(slot), now};
}

void ProgressObserver::look(Clock::time_point now) {
  // The main slot last: whoever sees that its helpers are done sees too what it has done because of them.
  for (int slot = Progress::kSlots - 1; slot >= 0; --slot) {
    auto& seen = nth(seen_, slot);
    const auto entry = progress_.at(slot);
    if (entry != seen.entry) seen = {entry, now};
  }
}

void ProgressObserver::forgive(Clock::duration lost) {
  for (auto& seen : seen_) seen.since += lost;
}

Heartbeat ProgressObserver::heartbeat(const std::function<std::string(const Progress::Entry&)>& describe,
                                      Clock::time_point now) const {
  Heartbeat heartbeat{.step = progress_.step(), .slots = {}};
  for (int slot = 0; slot < Progress::kSlots; ++slot) {
    const auto& seen = nth(seen_, slot);
    if (seen.entry.activity == Activity::idle) continue;
    heartbeat.slots.push_back({slot, seen.entry.activity,
                               std::chrono::duration<double>(now - seen.since).count(),
                               describe_entry(seen.entry, describe)});
  }
  return heartbeat;
}

}  // namespace lockstep::control
