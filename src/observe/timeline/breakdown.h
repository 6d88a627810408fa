#pragma once

#include <string>

#include "observe/timeline/timeline.h"

namespace lockstep::observe {

/// How a rank's time from its first instruction to its last is shared, in microseconds. The parts add up to
/// `total`: some instruction computed; none computed, but one communicated or copied; nothing was under way.
struct TemporalBreakdown {
  double total = 0, compute = 0, communication = 0, idle = 0;
};
TemporalBreakdown break_down(const RankTimeline& rank);

/// A table for people: a line for each rank, in percent; then clocks' errors and notes.
std::string describe(const Timeline& timeline);
/// The same as JSON.
std::string breakdown_json(const Timeline& timeline);

}  // namespace lockstep::observe
