#include "layout/pipeline_events.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::layout {
namespace {

using Kind = PipelineUnit::Kind;

/// In steps of a clock that are the same for all stages: a half of backward takes as long as forward.
int64_t cost_of(Kind kind) { return kind == Kind::backward ? 2 : 1; }

bool goes_backward(Kind kind) { return kind == Kind::backward || kind == Kind::backward_input; }

/// Replays all stages: when each unit is complete.
class Replay {
 public:
  Replay(const PipelineShape& shape, std::vector<std::vector<PipelineUnit>> schedules)
      : shape_(shape), schedules_(std::move(schedules)), ends_(schedules_.size()) {
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < shape.stages; ++stage)
        while (advance(stage)) moved = true;
    }
    for (int stage = 0; stage < shape.stages; ++stage)
      ensure(nth(ends_, stage).size() == nth(schedules_, stage).size(), "a schedule comes to its end");
  }

  const std::vector<PipelineUnit>& units(int stage) const { return nth(schedules_, stage); }
  int64_t end(int stage, size_t unit) const { return nth(ends_, stage)[unit]; }
  int pieces() const { return shape_.stages * shape_.chunks; }
  int piece_of(int stage, const PipelineUnit& unit) const { return unit.chunk * shape_.stages + stage; }
  /// The piece that gets what a unit makes, if any.
  std::optional<int> receiver_of(int stage, const PipelineUnit& unit) const {
    const int piece = piece_of(stage, unit);
    if (unit.kind == Kind::forward && piece + 1 < pieces()) return piece + 1;
    if (goes_backward(unit.kind) && piece > 0) return piece - 1;
    return std::nullopt;
  }

 private:
  using Made = std::tuple<bool, int, int>;  // backward?, piece, micro-batch

  bool advance(int stage) {
    auto& ends = nth(ends_, stage);
    if (ends.size() == nth(schedules_, stage).size()) return false;
    const PipelineUnit& unit = nth(schedules_, stage)[ends.size()];
    const int piece = piece_of(stage, unit);
    int64_t begin = ends.empty() ? 0 : ends.back();
    const bool backward = goes_backward(unit.kind);
    const int giver = backward ? piece + 1 : piece - 1;
    const bool waits = (backward || unit.kind == Kind::forward) && giver >= 0 && giver < pieces();
    if (waits) {
      const auto made = made_.find({backward, giver, unit.micro_batch});
      if (made == made_.end()) return false;
      begin = std::max(begin, made->second);
    }
    ends.push_back(begin + cost_of(unit.kind));
    if (backward || unit.kind == Kind::forward) made_[{backward, piece, unit.micro_batch}] = ends.back();
    return true;
  }

  const PipelineShape& shape_;
  std::vector<std::vector<PipelineUnit>> schedules_;
  std::vector<std::vector<int64_t>> ends_;
  std::map<Made, int64_t> made_;
};

std::vector<PipelineUnit> forward_units(const PipelineShape& shape) {
  std::vector<PipelineUnit> units;
  for (int first = 0; first < shape.micro_batches; first += shape.stages)
    for (int chunk = 0; chunk < shape.chunks; ++chunk)
      for (int m = first; m < std::min(first + shape.stages, shape.micro_batches); ++m)
        units.push_back({Kind::forward, m, chunk});
  return units;
}

std::vector<PipelineEvent> events_of(const PipelineShape& shape, const Replay& replay, int stage) {
  // When it is complete; units before messages, and those in an order that all ranks know.
  using Moment = std::tuple<int64_t, bool, bool, int, int>;
  std::vector<std::pair<Moment, PipelineEvent>> events;
  for (int at = 0; at < shape.stages; ++at)
    for (size_t u = 0; u < replay.units(at).size(); ++u) {
      const PipelineUnit& unit = replay.units(at)[u];
      const int piece = replay.piece_of(at, unit);
      const auto moment = [&](bool is_message) {
        return Moment{replay.end(at, u), is_message, goes_backward(unit.kind), piece, unit.micro_batch};
      };
      if (at == stage) events.push_back({moment(false), {PipelineEvent::Kind::unit, unit, piece, piece}});
      const std::optional<int> receiver = replay.receiver_of(at, unit);
      if (!receiver || (at != stage && *receiver % shape.stages != stage)) continue;
      events.push_back({moment(true),
                        {at == stage ? PipelineEvent::Kind::send : PipelineEvent::Kind::receive, unit, piece,
                         *receiver}});
    }
  std::ranges::stable_sort(events, {}, &std::pair<Moment, PipelineEvent>::first);
  std::vector<PipelineEvent> list;
  for (auto& [moment, event] : events) list.push_back(event);
  return list;
}

}  // namespace

std::vector<PipelineEvent> pipeline_events(const PipelineShape& shape, int stage) {
  std::vector<std::vector<PipelineUnit>> schedules;
  for (int at = 0; at < shape.stages; ++at) schedules.push_back(pipeline_schedule(shape, at));
  return events_of(shape, Replay(shape, std::move(schedules)), stage);
}

std::vector<PipelineEvent> evaluation_events(const PipelineShape& shape, int stage) {
  const std::vector<std::vector<PipelineUnit>> schedules(static_cast<size_t>(shape.stages),
                                                         forward_units(shape));
  return events_of(shape, Replay(shape, schedules), stage);
}

}  // namespace lockstep::layout
