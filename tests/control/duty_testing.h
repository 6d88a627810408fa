#pragma once

#include <gmock/gmock.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/duty.h"
#include "control/watchdog.h"

namespace lockstep::control {

const Clock::time_point kStart{std::chrono::seconds(1000)};
inline Clock::time_point at(int ms) { return kStart + std::chrono::milliseconds(ms); }

inline std::vector<RankIdentity> ranks(int size) {
  std::vector<RankIdentity> all;
  for (int rank = 0; rank < size; ++rank) all.push_back({rank < 2 ? "a" : "b", 100 + rank});
  return all;
}

inline Frame heartbeat(int64_t step, Activity activity = Activity::compute, double seconds = 0.1) {
  return {FrameType::heartbeat, encode_heartbeat({step, {{0, activity, seconds, "a place"}}})};
}
inline Frame answer(int64_t step) { return {FrameType::answer, heartbeat(step).payload}; }
inline Frame abort_frame(int code, const std::string& reason = "reason") {
  return {FrameType::abort, encode_abort({code, reason})};
}

inline std::string text(const std::optional<JobDecision>& decision) {
  if (!decision) return "none";
  const char* names[] = {"lost", "silent", "stuck", "deadlock", "failed", "terminated"};
  return std::string(names[static_cast<int>(decision->fault)]) + " " + std::to_string(decision->rank) +
         " code " + std::to_string(decision->code);
}

inline std::vector<std::pair<int, FrameType>> notes_of(Duty& duty) {
  std::vector<std::pair<int, FrameType>> notes;
  for (const auto& note : duty.take_notes()) notes.emplace_back(note.to, note.type);
  return notes;
}
using Notes = std::vector<std::pair<int, FrameType>>;

/// Rank 0 of four, two on each host.
class Root : public testing::Test {
 protected:
  void all_beat(int64_t step, int ms) {
    duty.observe({step, {}}, at(ms));
    for (int rank = 1; rank < 4; ++rank) duty.heard(rank, heartbeat(step), at(ms));
  }
  std::string decide(int ms) {
    decision = duty.decide(options, at(ms));
    return text(decision);
  }

  WatchdogOptions options;
  RootDuty duty{ranks(4), ControlTimings{}, kStart};
  std::optional<JobDecision> decision;
};

}  // namespace lockstep::control
