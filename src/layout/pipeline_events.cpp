#include "layout/pipeline_events.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "base/index.h"
#include "layout/pipeline_timeline.h"

namespace lockstep::layout {
namespace {

using Kind = PipelineUnit::Kind;

/// Of a message, in a replay of units that each take 1. If it took no time, a stage and the one that sends to
/// it would be done at once, and a receive might stand after a send for which its rank has to wait: then a
/// message that takes time would not be under way meanwhile. Sums with it are exact, so ties remain ties.
constexpr double kShortTransfer = 1.0 / (1 << 20);

bool goes_backward(Kind kind) { return kind == Kind::backward || kind == Kind::backward_input; }

/// The piece that gets what a unit of a piece makes, if any.
std::optional<int> receiver_of(const PipelineShape& shape, Kind kind, int piece) {
  if (kind == Kind::forward && piece + 1 < shape.stages * shape.chunks) return piece + 1;
  if (goes_backward(kind) && piece > 0) return piece - 1;
  return std::nullopt;
}

std::vector<PipelineUnit> forward_units(const PipelineShape& shape) {
  std::vector<PipelineUnit> units;
  for (int first = 0; first < shape.micro_batches; first += shape.stages)
    for (int chunk = 0; chunk < shape.chunks; ++chunk)
      for (int m = first; m < std::min(first + shape.stages, shape.micro_batches); ++m)
        units.push_back({Kind::forward, m, chunk});
  return units;
}

std::vector<PipelineEvent> events_of(const PipelineShape& shape, const PipelineTimeline& timeline,
                                     int stage) {
  // When it is complete; of the same time units before the messages that they make, and forward before
  // backward, so that an input is on its way while its stage goes backward. All ranks know this order.
  using Moment = std::tuple<double, bool, bool, int, int>;
  std::vector<std::pair<Moment, PipelineEvent>> events;
  for (int at = 0; at < shape.stages; ++at)
    for (const TimedUnit& timed : nth(timeline.stages, at).units) {
      const PipelineUnit& unit = timed.unit;
      const int piece = unit.chunk * shape.stages + at;
      const auto moment = [&](bool is_message) {
        return Moment{timed.end, unit.kind != Kind::forward, is_message, piece, unit.micro_batch};
      };
      if (at == stage) events.push_back({moment(false), {PipelineEvent::Kind::unit, unit, piece, piece}});
      const std::optional<int> receiver = receiver_of(shape, unit.kind, piece);
      if (!receiver || (at != stage && *receiver % shape.stages != stage)) continue;
      events.push_back(
          {moment(true),
           {at == stage ? PipelineEvent::Kind::send : PipelineEvent::Kind::receive, unit, piece, *receiver}});
    }
  std::ranges::stable_sort(events, {}, &std::pair<Moment, PipelineEvent>::first);
  std::vector<PipelineEvent> list;
  for (auto& [moment, event] : events) list.push_back(event);
  return list;
}

}  // namespace

std::vector<PipelineEvent> pipeline_events(const PipelineShape& shape, int stage) {
  return events_of(shape, replay(shape, {.transfer = kShortTransfer}), stage);
}

std::vector<PipelineEvent> evaluation_events(const PipelineShape& shape, int stage) {
  const std::vector<std::vector<PipelineUnit>> schedules(static_cast<size_t>(shape.stages),
                                                         forward_units(shape));
  return events_of(shape, replay(schedules, {.transfer = kShortTransfer}), stage);
}

}  // namespace lockstep::layout
