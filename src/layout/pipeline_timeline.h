#pragma once

#include <vector>

#include "layout/pipeline_schedule.h"

namespace lockstep::layout {

/// How long the units of a pipeline take, in any unit of time. A joint backward takes as long as both halves.
/// For interleaved schedules these are times of a piece, which is smaller by the number of chunks.
struct UnitTimes {
  double forward = 1, backward_input = 1, backward_weight = 1, recompute = 1;
  /// From the end of a unit until the next stage has its result. Stages compute meanwhile.
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

/// The times of a pipeline's step, if each unit starts as soon as its stage is free and its inputs are there.
struct PipelineTimeline {
  std::vector<StageTimeline> stages;
  double step = 0;  ///< from the start of the first unit to the end of the last

  /// The time in which a stage computes nothing.
  double bubble(int stage) const;
  /// The share of all stages' time that is bubble. It is a share of the step, not of the time without
  /// bubbles, by which some papers divide.
  double bubble_fraction() const;
};

PipelineTimeline replay(const PipelineShape& shape, const UnitTimes& times);
/// The same if each piece of the model (PipelineShape::chunks) has its own times.
PipelineTimeline replay_pieces(const PipelineShape& shape, const std::vector<UnitTimes>& by_piece);

/// The same for any lists of units, one for each stage. Sends never wait, and each stage receives in the
/// order of its own units. Throws InternalError, which names what each stage waits for, if the stages cannot
/// finish.
PipelineTimeline replay(const std::vector<std::vector<PipelineUnit>>& stages, const UnitTimes& times);

/// The most activations that a stage keeps at once, counted in pairs of a micro-batch and a chunk. A pair
/// counts from the start of its forward to the end of the last unit that needs it: backward or
/// backward_weight.
struct ActivationPeak {
  int pairs = 0;  ///< pairs of which anything is kept: at least the chunk's input
  /// Pairs of which all activations are kept. Less than `pairs` only with recomputation: activations of a
  /// pair with a `recompute` count from its start. What a forward computes and drops at once does not count.
  int whole = 0;
  bool operator==(const ActivationPeak&) const = default;
};
ActivationPeak activation_peak(const std::vector<PipelineUnit>& units);

/// The bubble of the stage that computes longest, for p stages, m micro-batches, and times F, B and W of
/// forward and the halves of backward, without recomputation and if transfers take no time:
///
///   GPipe, 1F1B, interleaved   (p-1) (F+B+W)         of a piece: 1/v of that of 1F1B with v chunks
///   ZB-H1                      (p-1) (F+B) - (min(m,p)-1) min(F,B,W)
///
/// The first formula is of Huang et al. 2019 (GPipe) and Narayanan et al. 2021 (interleaved). The second, for
/// m >= p and a W no longer than F or B, is the (p-1) (F+B-W) of Qi et al. 2023; its general form was found
/// by replaying, and tests compare it with replays. With recomputation GPipe's bubble stays, and that of the
/// others is at most this, because recomputation fills time in which a stage would wait.
double theoretical_bubble(const PipelineShape& shape, const UnitTimes& times);

}  // namespace lockstep::layout
