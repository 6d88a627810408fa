#include "observe/timeline/breakdown.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace lockstep::observe {
namespace {

using Interval = std::pair<double, double>;

/// The length of the union.
double covered(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end());
  double length = 0, end = 0;
  bool first = true;
  for (const auto& [from, to] : intervals) {
    const double begin = first ? from : std::max(from, end);
    if (to > begin) length += to - begin;
    end = first ? to : std::max(end, to);
    first = false;
  }
  return length;
}

double share(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

}  // namespace

TemporalBreakdown break_down(const RankTimeline& rank) {
  std::vector<Interval> computing, busy;
  for (const TimelineSlice& slice : rank.slices) {
    if (slice.kind != SliceKind::compute && slice.kind != SliceKind::copy &&
        slice.kind != SliceKind::communication)
      continue;
    busy.emplace_back(slice.begin, slice.end);
    if (slice.kind == SliceKind::compute) computing.push_back(busy.back());
  }
  TemporalBreakdown breakdown;
  if (busy.empty()) return breakdown;
  double begin = busy.front().first, end = busy.front().second;
  for (const auto& [from, to] : busy) begin = std::min(begin, from), end = std::max(end, to);
  const double worked = covered(busy);
  breakdown.total = end - begin;
  breakdown.compute = covered(std::move(computing));
  breakdown.communication = worked - breakdown.compute;
  breakdown.idle = breakdown.total - worked;
  return breakdown;
}

std::string describe(const Timeline& timeline) {
  std::string text = fmt::format("{} steps {} to {}, layout {}\n\n{:<6}{:>12}{:>11}{:>25}{:>8}\n",
                                 timeline.source, timeline.first_step, timeline.last_step, timeline.layout,
                                 "rank", "ms", "computes", "communicates or copies", "idle");
  double clock_error = 0, device_error = 0;
  for (const RankTimeline& rank : timeline.ranks) {
    const TemporalBreakdown part = break_down(rank);
    text += fmt::format("{:<6}{:>12.3f}{:>9.1f} %{:>23.1f} %{:>6.1f} %\n", rank.rank, part.total / 1000,
                        share(part.compute, part.total), share(part.communication, part.total),
                        share(part.idle, part.total));
    clock_error = std::max(clock_error, rank.clock_error);
    device_error = std::max(device_error, rank.device_error);
  }
  text += fmt::format("\nclocks of ranks agree to {:.1f} us, of devices and hosts to {:.1f} us\n",
                      clock_error, device_error);
  for (const std::string& note : timeline.notes) text += "note: " + note + "\n";
  return text;
}

std::string breakdown_json(const Timeline& timeline) {
  nlohmann::ordered_json json{
      {"source", timeline.source},         {"layout", timeline.layout},
      {"first_step", timeline.first_step}, {"last_step", timeline.last_step},
      {"notes", timeline.notes},           {"ranks", nlohmann::ordered_json::array()}};
  for (const RankTimeline& rank : timeline.ranks) {
    const TemporalBreakdown part = break_down(rank);
    json["ranks"].push_back({{"rank", rank.rank},
                             {"total_us", part.total},
                             {"compute_us", part.compute},
                             {"communication_us", part.communication},
                             {"idle_us", part.idle},
                             {"clock_offset_us", rank.clock_offset},
                             {"clock_error_us", rank.clock_error},
                             {"device_clock_error_us", rank.device_error},
                             {"dropped_slices", rank.dropped_slices}});
  }
  return json.dump();
}

}  // namespace lockstep::observe
