#pragma once

#include <vector>

#include "layout/pipeline_schedule.h"

namespace lockstep::layout {

/// How long the units of a pipeline take, in any one unit of time; a joint backward takes both halves.
/// Of interleaved schedules they are the times of a piece, which is smaller by the number of chunks.
struct UnitTimes {
  double forward = 1, backward_input = 1, backward_weight = 1, recompute = 1;
  /// From the end of a unit to when the next stage has what it made. Stages compute meanwhile.
  double transfer = 0;

  double of(PipelineUnit::Kind kind) const;
};

struct TimedUnit {
  PipelineUnit unit;
  double start = 0, end = 0;
};

struct StageTimeline {
  std::vector<TimedUnit> units;  ///< in the order in which they run
  double busy = 0;               ///< sum of the times of its units
};

/// A step of a pipeline: when each stage runs what, if each unit starts as soon as its stage is free and what
/// it needs is there.
struct PipelineTimeline {
  std::vector<StageTimeline> stages;
  double step = 0;  ///< from the start of the first unit to the end of the last

  /// How long a stage computes nothing.
  double bubble(int stage) const;
  /// The part of all stages' time that is bubble: of the step, not of the time without bubbles, by which some
  /// papers divide.
  double bubble_fraction() const;
};

PipelineTimeline replay(const PipelineShape& shape, const UnitTimes& times);
/// Likewise where each piece of the model (PipelineShape::chunks) takes its own time.
PipelineTimeline replay_pieces(const PipelineShape& shape, const std::vector<UnitTimes>& by_piece);

/// Likewise of any lists of units, one for each stage. Sends wait for nobody, and each stage takes what is
/// sent to it in the order of its own units. Throws InternalError, naming what each stage waits for, if they
/// cannot come to their ends.
PipelineTimeline replay(const std::vector<std::vector<PipelineUnit>>& stages, const UnitTimes& times);

/// The most that a stage keeps at once for its backwards, counted in pairs of a micro-batch and a chunk, from
/// the start of a pair's forward to the end of the last unit that needs them: backward or backward_weight.
struct ActivationPeak {
  int pairs = 0;  ///< of which anything is kept: at least what entered the chunk
  /// Of which all activations are kept: less than `pairs` only with recomputation, where those of a pair that
  /// has a `recompute` live from its start. What a forward makes and drops again is not counted.
  int whole = 0;
  bool operator==(const ActivationPeak&) const = default;
};
ActivationPeak activation_peak(const std::vector<PipelineUnit>& units);

/// The bubble of the stage that computes longest, for p stages, m micro-batches, times F, B and W of forward
/// and the halves of backward, without recomputation and with transfers that take no time:
///
///   GPipe, 1F1B, interleaved   (p-1) (F+B+W)         of a piece: 1/v of that of 1F1B with v chunks
///   ZB-H1                      (p-1) (F+B) - (min(m,p)-1) min(F,B,W)
///
/// The first is of Huang et al. 2019 (GPipe) and Narayanan et al. 2021 (interleaved). The second is, for
/// m >= p and a W that is none longer than F or B, the (p-1) (F+B-W) of Qi et al. 2023; all of it was found
/// by replaying, and the tests hold it against replays. With recomputation GPipe's stays, and that of the
/// others is at most this: recomputing fills time in which a stage would wait.
double theoretical_bubble(const PipelineShape& shape, const UnitTimes& times);

}  // namespace lockstep::layout
