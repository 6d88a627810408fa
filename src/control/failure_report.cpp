#include "control/failure_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "base/index.h"
#include "base/text.h"

namespace lockstep::control {
namespace {

/// With the lines around them a report stays below forty.
constexpr size_t kMostLines = 30;
constexpr size_t kMostRanges = 12;

std::string_view name_of(Fault fault) {
  switch (fault) {
    case Fault::lost:
      return "lost";
    case Fault::silent:
      return "silent";
    case Fault::stuck:
      return "stuck";
    case Fault::deadlock:
      return "deadlock";
    case Fault::failed:
      return "failed";
    case Fault::terminated:
      return "terminated";
  }
  return "failed";
}

std::string_view verb_of(Activity activity, bool plural) {
  switch (activity) {
    case Activity::compute:
      return plural ? "compute" : "computes";
    case Activity::input:
      return plural ? "load" : "loads";
    case Activity::storage:
      return plural ? "store" : "stores";
    case Activity::waiting:
      return plural ? "wait" : "waits";
    case Activity::idle:
      break;
  }
  return plural ? "idle" : "idles";
}

std::string_view field_of(Activity activity) {
  switch (activity) {
    case Activity::compute:
      return "compute_seconds";
    case Activity::input:
      return "input_seconds";
    case Activity::storage:
      return "storage_seconds";
    default:
      return "communication_seconds";
  }
}

/// Ranks that share a line: all but their times is the same.
struct Group {
  std::vector<int> ranks;
  std::vector<std::pair<double, double>> times;  // least and most seconds of each slot
};

bool alike(const RankState& a, const RankState& b, const WatchdogOptions& options) {
  return a.left == b.left && a.lost == b.lost && a.spared == b.spared &&
         is_late(a, options) == is_late(b, options) && a.last.step == b.last.step &&
         std::equal(a.last.slots.begin(), a.last.slots.end(), b.last.slots.begin(), b.last.slots.end(),
                    [](const SlotState& x, const SlotState& y) {
                      return x.activity == y.activity && x.text == y.text;
                    });
}

std::string time_text(std::pair<double, double> time) {
  const std::string least = fmt::format("{:.1f}", time.first), most = fmt::format("{:.1f}", time.second);
  return least == most ? least : fmt::format("{} to {}", least, most);
}

std::string situation(const Heartbeat& heartbeat, const std::vector<std::pair<double, double>>& times,
                      bool plural) {
  std::string text = fmt::format("after step {}, ", heartbeat.step);
  if (heartbeat.slots.empty()) return text + (plural ? "idle" : "idles");
  for (size_t i = 0; i < heartbeat.slots.size(); ++i) {
    const auto& slot = heartbeat.slots[i];
    text += fmt::format("{}{} {} s in {}", i == 0 ? "" : "; ", verb_of(slot.activity, plural),
                        time_text(times[i]), slot.text);
  }
  return text;
}

std::vector<std::pair<double, double>> times_of(const Heartbeat& heartbeat) {
  std::vector<std::pair<double, double>> times;
  for (const auto& slot : heartbeat.slots) times.emplace_back(slot.seconds, slot.seconds);
  return times;
}

std::string group_line(const Group& group, std::span<const RankState> states,
                       const WatchdogOptions& options) {
  const RankState& first = nth(states, group.ranks.front());
  const bool plural = group.ranks.size() > 1;
  const std::string who = plural ? "ranks " + ranks_text(group.ranks)
                                 : fmt::format("rank {} on {}", group.ranks.front(), first.who.host);
  if (first.spared) return fmt::format("  {}: lost earlier; the job went on without it\n", who);
  if (first.lost) return fmt::format("  {}: lost, too\n", who);
  if (first.left) return fmt::format("  {}: done\n", who);
  const std::string silence = !is_late(first, options) ? ""
                              : plural                 ? "not heard from lately; "
                                       : fmt::format("not heard from for {:.1f} s; ", first.heard_seconds);
  return fmt::format("  {}: {}{}\n", who, silence, situation(first.last, group.times, plural));
}

void add_to_group(std::vector<Group>& groups, int rank, bool share, std::span<const RankState> states,
                  const WatchdogOptions& options) {
  const RankState& state = nth(states, rank);
  const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
    return share && alike(nth(states, group.ranks.front()), state, options);
  });
  if (same == groups.end()) {
    groups.push_back({{rank}, times_of(state.last)});
    return;
  }
  same->ranks.push_back(rank);
  for (size_t i = 0; i < same->times.size(); ++i) {
    same->times[i].first = std::min(same->times[i].first, state.last.slots[i].seconds);
    same->times[i].second = std::max(same->times[i].second, state.last.slots[i].seconds);
  }
}

std::string other_lines(int culprit, std::span<const RankState> states, const WatchdogOptions& options) {
  const auto speaks = [](const RankState& state) { return state.told || state.lost || state.left; };
  const bool share = static_cast<size_t>(std::count_if(states.begin(), states.end(), speaks)) > kMostLines;
  std::vector<Group> groups;
  size_t unheard = 0, left_out = 0;
  for (int rank = 0; rank < static_cast<int>(states.size()); ++rank) {
    if (rank == culprit) continue;
    if (!speaks(nth(states, rank))) {
      ++unheard;
    } else {
      add_to_group(groups, rank, share, states, options);
    }
  }
  std::string text;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (i < kMostLines) {
      text += group_line(groups[i], states, options);
    } else {
      left_out += groups[i].ranks.size();
    }
  }
  if (left_out > 0) text += fmt::format("  {} more ranks, each in a different situation\n", left_out);
  if (unheard > 0)
    text += fmt::format("  nothing is known about {} more rank{}\n", unheard, unheard == 1 ? "" : "s");
  return text;
}

std::string full_name(int rank, std::span<const RankState> states) {
  const auto& who = nth(states, rank).who;
  return fmt::format("rank {} of {} on host {} (pid {})", rank, states.size(), who.host, who.pid);
}

/// "in A, and in B", or "idle".
std::string places(const Heartbeat& heartbeat) {
  std::vector<std::string> parts;
  for (const auto& slot : heartbeat.slots)
    parts.push_back((slot.activity == Activity::waiting ? "waiting in " : "in ") + slot.text);
  return parts.empty() ? "idle" : join(parts, ", and ");
}

std::string last_heard(const RankState& state) {
  if (!state.told) return "  it had reported nothing yet\n";
  return fmt::format("  it was last heard from {:.1f} s earlier, {}\n",
                     std::max(0.0, state.heard_seconds - state.lost_seconds), places(state.last));
}

std::string accusation(const Finding& finding, std::span<const RankState> states,
                       const WatchdogOptions& options) {
  const RankState& state = nth(states, finding.rank);
  const std::string who = full_name(finding.rank, states);
  int64_t complete = 0;
  for (const auto& each : states) complete = std::max(complete, each.last.step);
  switch (finding.fault) {
    case Fault::lost:
      return fmt::format("{} was lost in step {}: {} without a farewell\n{}", who, complete + 1,
                         state.lost_reason, last_heard(state));
    case Fault::silent:
      return fmt::format(
          "{} is silent in step {}: nothing was heard from it for {:.1f} s "
          "(watchdog.silent_seconds is {:g})\n  {}\n",
          who, complete + 1, state.heard_seconds, seconds_of(options.silent_after),
          state.told ? "then it was " + places(state.last) : "it had reported nothing yet");
    case Fault::stuck: {
      const SlotState& slot = nth(state.last.slots, finding.slot);
      return fmt::format("{} is stuck in step {}: it {} for {:.1f} s in {} (watchdog.{} is {:g})\n", who,
                         state.last.step + 1, verb_of(slot.activity, false), slot.seconds, slot.text,
                         field_of(slot.activity), seconds_of(deadline_of(slot.activity, options)));
    }
    default:
      return fmt::format(
          "all ranks wait for each other; {} is furthest behind, in step {}: it has waited for {:.1f} s, {} "
          "(watchdog.communication_seconds is {:g})\n",
          who, state.last.step + 1, waited_seconds(state.last), places(state.last),
          seconds_of(options.communication_deadline));
  }
}

}  // namespace

ExitCode exit_code_of(Fault fault) {
  switch (fault) {
    case Fault::lost:
      return ExitCode::peer_lost;
    case Fault::terminated:
      return ExitCode::terminated;
    default:
      return ExitCode::hang;
  }
}

std::string last_line(int code, Fault fault, int rank, const std::string& host) {
  return fmt::format("lockstep: the job ends with exit code {} ({}: rank {} on {})\n", code, name_of(fault),
                     rank, host);
}

std::string failure_report(const Finding& finding, std::span<const RankState> states,
                           const WatchdogOptions& options) {
  const RankState& culprit = nth(states, finding.rank);
  std::string text = "lockstep: error: " + accusation(finding, states, options);
  // What else the culprit does, beside the thread that is blamed.
  if (finding.fault == Fault::stuck && culprit.last.slots.size() > 1)
    text += fmt::format("  it is {}\n", situation_text(culprit.last));
  text += other_lines(finding.rank, states, options);
  return text + last_line(static_cast<int>(exit_code_of(finding.fault)), finding.fault, finding.rank,
                          culprit.who.host);
}

std::string loss_report(const Finding& finding, std::span<const RankState> states,
                        const WatchdogOptions& options) {
  return "lockstep: warning: " + accusation(finding, states, options) + "  the others go on without it\n";
}

std::string abort_report(int rank, std::span<const RankState> states, int code, const std::string& reason) {
  return fmt::format("{} failed: {}\n{}", full_name(rank, states), reason,
                     last_line(code, Fault::failed, rank, nth(states, rank).who.host));
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    ranges.push_back(end - i == 1 ? fmt::format("{}", ranks[i])
                                  : fmt::format("{}-{}", ranks[i], ranks[end - 1]));
    i = end;
    if (ranges.size() == kMostRanges && i < ranks.size()) {
      ranges.push_back(fmt::format("and {} more", ranks.size() - i));
      break;
    }
  }
  return join(ranges, ", ");
}

std::string situation_text(const Heartbeat& heartbeat) {
  return situation(heartbeat, times_of(heartbeat), false);
}

}  // namespace lockstep::control
