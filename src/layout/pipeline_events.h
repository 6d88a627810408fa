#pragma once

#include <vector>

#include "layout/pipeline_schedule.h"

namespace lockstep::layout {

/// An event on a rank of a pipeline: a unit, or a message by which a piece of the model passes on its results
/// of a micro-batch.
struct PipelineEvent {
  enum class Kind { unit, send, receive };
  Kind kind;
  PipelineUnit unit;  ///< of a message: the unit that computes its contents
  int piece = 0;      ///< the piece of the unit
  int receiver = 0;   ///< of a message: the piece that receives it, the next or the preceding one
  bool operator==(const PipelineEvent&) const = default;
};

/// The events of one stage. On both ends, messages are placed by a replay of all stages with units of equal
/// cost and very short transfers: after the unit that computes them, and before everything that is complete
/// later. So a message is in flight while another unit runs. All ranks have messages in the same order of
/// time, so they never deadlock, even if each does one thing at a time and nothing is buffered. Throws as
/// pipeline_schedule does.
std::vector<PipelineEvent> pipeline_events(const PipelineShape& shape, int stage);
/// The same for an evaluation: only forward passes, of any number of micro-batches. If a rank has several
/// pieces, as many micro-batches as there are stages pass through one piece before the next piece begins, so
/// that no stage waits for them to come around.
std::vector<PipelineEvent> evaluation_events(const PipelineShape& shape, int stage);

}  // namespace lockstep::layout
