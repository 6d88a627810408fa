#include "control/judge.h"

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "base/index.h"

namespace lockstep::control {
namespace {

bool present(const RankState& state) { return !state.left && !state.lost; }

std::optional<Finding> find_stuck(std::span<const RankState> states, const WatchdogOptions& options) {
  std::optional<Finding> worst;
  double worst_excess = 0;
  for (size_t rank = 0; rank < states.size(); ++rank) {
    if (!present(states[rank])) continue;
    const auto& slots = states[rank].last.slots;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].activity == Activity::idle || slots[i].activity == Activity::waiting) continue;
      const double excess = slots[i].seconds - seconds_of(deadline_of(slots[i].activity, options));
      if (excess > worst_excess) {
        worst_excess = excess;
        worst = {Fault::stuck, static_cast<int>(rank), static_cast<int>(i)};
      }
    }
  }
  return worst;
}

bool waits(const Heartbeat& heartbeat) {
  return !heartbeat.slots.empty() &&
         std::all_of(heartbeat.slots.begin(), heartbeat.slots.end(),
                     [](const SlotState& slot) { return slot.activity == Activity::waiting; });
}

std::optional<Finding> find_deadlock(std::span<const RankState> states, const WatchdogOptions& options) {
  std::optional<Finding> behind;
  const auto further_behind = [&](const RankState& a, const RankState& b) {
    if (a.last.step != b.last.step) return a.last.step < b.last.step;
    return waited_seconds(a.last) > waited_seconds(b.last);
  };
  for (size_t rank = 0; rank < states.size(); ++rank) {
    const RankState& state = states[rank];
    // The others may have waited for it alone: how long they wait counts from its loss on.
    if (state.spared && state.spared_seconds <= seconds_of(options.communication_deadline)) return {};
    if (state.left) continue;
    if (!state.told || is_late(state, options)) return {};
    if (!waits(state.last) || waited_seconds(state.last) <= seconds_of(options.communication_deadline))
      return {};
    if (!behind || further_behind(state, nth(states, behind->rank)))
      behind = {Fault::deadlock, static_cast<int>(rank)};
  }
  return behind;
}

}  // namespace

bool is_late(const RankState& state, const WatchdogOptions& options) {
  return state.heard_seconds > seconds_of(options.silent_after) / 2;
}

std::chrono::milliseconds deadline_of(Activity activity, const WatchdogOptions& options) {
  switch (activity) {
    case Activity::compute:
      return options.compute_deadline;
    case Activity::input:
      return options.input_deadline;
    case Activity::storage:
      return options.storage_deadline;
    case Activity::waiting:
      return options.communication_deadline;
    case Activity::idle:
      break;
  }
  return {};
}

double waited_seconds(const Heartbeat& heartbeat) {
  if (heartbeat.slots.empty()) return 0;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& slot : heartbeat.slots) least = std::min(least, slot.seconds);
  return least;
}

std::optional<Finding> find_absent(std::span<const RankState> states, const WatchdogOptions& options) {
  std::optional<Finding> lost, silent;
  for (size_t rank = 0; rank < states.size(); ++rank) {
    const RankState& state = states[rank];
    if (state.left) continue;
    if (state.lost) {
      if (!lost || state.lost_seconds > nth(states, lost->rank).lost_seconds)
        lost = {Fault::lost, static_cast<int>(rank)};
    } else if (options.enabled && state.heard_seconds > seconds_of(options.silent_after)) {
      if (!silent || state.heard_seconds > nth(states, silent->rank).heard_seconds)
        silent = {Fault::silent, static_cast<int>(rank)};
    }
  }
  return lost ? lost : silent;
}

std::optional<Finding> judge(std::span<const RankState> states, const WatchdogOptions& options) {
  if (const auto absent = find_absent(states, options)) return absent;
  if (!options.enabled) return {};
  if (const auto stuck = find_stuck(states, options)) return stuck;
  return find_deadlock(states, options);
}

}  // namespace lockstep::control
