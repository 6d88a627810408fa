#pragma once

#include <vector>

#include "layout/pipeline_schedule.h"

namespace lockstep::layout {

/// What happens on a rank of a pipeline, in order: its units, and the messages by which pieces of the model
/// hand on what they have made of a micro-batch.
struct PipelineEvent {
  enum class Kind { unit, send, receive };
  Kind kind;
  PipelineUnit unit;  ///< of a message, the one that makes what it carries
  int piece = 0;      ///< that does so
  int receiver = 0;   ///< of a message: the piece that gets it, the one after or before
  bool operator==(const PipelineEvent&) const = default;
};

/// The events of one stage. Messages stand, on both of their ends, where a replay of all stages with units of
/// equal cost and very short transfers would have them: after the unit that makes them, and before whatever
/// is complete later than that. So a message is under way while another unit runs; and since all ranks have
/// the same moments in the same order, they never wait for each other, even if each does one thing at a time
/// and nothing is buffered. Throws as pipeline_schedule does.
std::vector<PipelineEvent> pipeline_events(const PipelineShape& shape, int stage);
/// Likewise of an evaluation: forward passes alone, of any number of micro-batches. With several pieces of a
/// rank as many micro-batches as stages go through one before the next begins, so that no stage waits for
/// them to come around.
std::vector<PipelineEvent> evaluation_events(const PipelineShape& shape, int stage);

}  // namespace lockstep::layout
