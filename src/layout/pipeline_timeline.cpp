#include "layout/pipeline_timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/index.h"
#include "lockstep/error.h"

namespace lockstep::layout {
namespace {

using Kind = PipelineUnit::Kind;

std::string name_of(const PipelineUnit& unit) {
  constexpr const char* kNames[] = {"forward", "recompute", "backward", "backward_input", "backward_weight"};
  return fmt::format("{} of micro-batch {}, chunk {}", nth(kNames, unit.kind), unit.micro_batch, unit.chunk);
}

/// When something that pieces make of each micro-batch is there.
class MadeTimes {
 public:
  MadeTimes(int pieces, int micro_batches)
      : pieces_(pieces), times_(static_cast<size_t>(pieces) * static_cast<size_t>(micro_batches)) {}

  std::optional<double>& of(int micro_batch, int piece) { return nth(times_, micro_batch * pieces_ + piece); }

 private:
  int pieces_;
  std::vector<std::optional<double>> times_;
};

/// The highest number of its kind in all units, and one.
int count_of(const std::vector<std::vector<PipelineUnit>>& stages, int PipelineUnit::*number) {
  int count = 1;
  for (const auto& units : stages)
    for (const PipelineUnit& unit : units) count = std::max(count, unit.*number + 1);
  return count;
}

class Replay {
 public:
  Replay(const std::vector<std::vector<PipelineUnit>>& stages, const std::vector<UnitTimes>& by_piece)
      : schedules_(stages),
        times_(by_piece),
        pieces_(static_cast<int>(by_piece.size())),
        outputs_(pieces_, count_of(stages, &PipelineUnit::micro_batch)),
        input_gradients_(outputs_) {
    timeline_.stages.resize(stages.size());
  }

  PipelineTimeline run() {
    for (bool proceeds = true; proceeds;) {
      proceeds = false;
      for (int stage = 0; stage < stage_count(); ++stage)
        while (run_next(stage)) proceeds = true;
    }
    require_complete();
    for (const auto& stage : timeline_.stages)
      if (!stage.units.empty()) timeline_.step = std::max(timeline_.step, stage.units.back().end);
    return std::move(timeline_);
  }

 private:
  int stage_count() const { return static_cast<int>(schedules_.size()); }

  const PipelineUnit* next_of(int stage) const {
    const auto& units = nth(schedules_, stage);
    const size_t done = nth(timeline_.stages, stage).units.size();
    return done < units.size() ? &units[done] : nullptr;
  }

  bool run_next(int stage) {
    const PipelineUnit* unit = next_of(stage);
    const std::optional<double> ready = unit == nullptr ? std::nullopt : ready_at(*unit, stage);
    if (!ready) return false;
    StageTimeline& line = nth(timeline_.stages, stage);
    const double start = line.units.empty() ? *ready : std::max(*ready, line.units.back().end);
    const double time = nth(times_, piece_of(*unit, stage)).of(unit->kind);
    line.units.push_back({*unit, start, start + time});
    line.busy += time;
    note_made(*unit, stage, start + time);
    return true;
  }

  /// When all that a unit reads is there; nothing while some of it is not made.
  std::optional<double> ready_at(const PipelineUnit& unit, int stage) {
    const int piece = piece_of(unit, stage);
    switch (unit.kind) {
      case Kind::forward:
        return piece == 0 ? 0 : arrival(outputs_.of(unit.micro_batch, piece - 1), piece - 1);
      case Kind::recompute:
        return outputs_.of(unit.micro_batch, piece);
      case Kind::backward_weight:
        return input_gradients_.of(unit.micro_batch, piece);
      case Kind::backward:
      case Kind::backward_input:
        break;
    }
    const std::optional<double> own = outputs_.of(unit.micro_batch, piece);
    if (piece == pieces_ - 1 || !own) return own;
    const std::optional<double> gradient =
        arrival(input_gradients_.of(unit.micro_batch, piece + 1), piece + 1);
    return gradient ? std::max(*own, *gradient) : gradient;
  }

  void note_made(const PipelineUnit& unit, int stage, double end) {
    const int piece = piece_of(unit, stage);
    if (unit.kind == Kind::forward) outputs_.of(unit.micro_batch, piece) = end;
    if (unit.kind == Kind::backward || unit.kind == Kind::backward_input)
      input_gradients_.of(unit.micro_batch, piece) = end;
  }

  int piece_of(const PipelineUnit& unit, int stage) const { return unit.chunk * stage_count() + stage; }

  std::optional<double> arrival(std::optional<double> made, int maker) const {
    return made && stage_count() > 1 ? *made + nth(times_, maker).transfer : made;
  }

  void require_complete() const {
    std::string waiting;
    for (int stage = 0; stage < stage_count(); ++stage)
      if (const PipelineUnit* unit = next_of(stage))
        waiting += fmt::format("{}stage {} waits for what {} needs", waiting.empty() ? "" : "; ", stage,
                               name_of(*unit));
    if (!waiting.empty())
      throw InternalError(fmt::format("a pipeline's schedule cannot proceed: {}", waiting));
  }

  const std::vector<std::vector<PipelineUnit>>& schedules_;
  const std::vector<UnitTimes>& times_;  // by piece
  int pieces_;
  MadeTimes outputs_, input_gradients_;
  PipelineTimeline timeline_;
};

}  // namespace

double UnitTimes::of(Kind kind) const {
  switch (kind) {
    case Kind::forward:
      return forward;
    case Kind::recompute:
      return recompute;
    case Kind::backward:
      return backward_input + backward_weight;
    case Kind::backward_input:
      return backward_input;
    case Kind::backward_weight:
      return backward_weight;
  }
  throw InternalError("a unit of a pipeline without a time");
}

double PipelineTimeline::bubble(int stage) const { return step - nth(stages, stage).busy; }

double PipelineTimeline::bubble_fraction() const {
  double bubbles = 0;
  for (const StageTimeline& stage : stages) bubbles += step - stage.busy;
  return step > 0 ? bubbles / (step * static_cast<double>(stages.size())) : 0;
}

PipelineTimeline replay(const PipelineShape& shape, const UnitTimes& times) {
  const auto pieces = static_cast<size_t>(shape.stages) * static_cast<size_t>(shape.chunks);
  return replay_pieces(shape, std::vector<UnitTimes>(pieces, times));
}

PipelineTimeline replay_pieces(const PipelineShape& shape, const std::vector<UnitTimes>& by_piece) {
  std::vector<std::vector<PipelineUnit>> stages;
  for (int stage = 0; stage < shape.stages; ++stage) stages.push_back(pipeline_schedule(shape, stage));
  return Replay(stages, by_piece).run();
}

PipelineTimeline replay(const std::vector<std::vector<PipelineUnit>>& stages, const UnitTimes& times) {
  const auto pieces = stages.size() * static_cast<size_t>(count_of(stages, &PipelineUnit::chunk));
  return Replay(stages, std::vector<UnitTimes>(pieces, times)).run();
}

ActivationPeak activation_peak(const std::vector<PipelineUnit>& units) {
  std::set<std::pair<int, int>> recomputed;
  for (const PipelineUnit& unit : units)
    if (unit.kind == Kind::recompute) recomputed.emplace(unit.micro_batch, unit.chunk);
  ActivationPeak now, peak;
  for (const PipelineUnit& unit : units) {
    const bool ends = unit.kind == Kind::backward || unit.kind == Kind::backward_weight;
    const bool begins = unit.kind == Kind::forward;
    const bool becomes_whole =
        unit.kind == Kind::recompute || (begins && !recomputed.contains({unit.micro_batch, unit.chunk}));
    now.pairs += begins ? 1 : 0;
    now.whole += becomes_whole ? 1 : 0;
    peak = {std::max(peak.pairs, now.pairs), std::max(peak.whole, now.whole)};
    now.pairs -= ends ? 1 : 0;
    now.whole -= ends ? 1 : 0;
  }
  return peak;
}

double theoretical_bubble(const PipelineShape& shape, const UnitTimes& times) {
  const double forward = times.forward, input = times.backward_input, weight = times.backward_weight;
  const int others = shape.stages - 1;
  if (shape.schedule != PipelineSchedule::zero_bubble) return others * (forward + input + weight);
  const int lag = std::min(shape.micro_batches, shape.stages) - 1;
  return others * (forward + input) - lag * std::min({forward, input, weight});
}

}  // namespace lockstep::layout
