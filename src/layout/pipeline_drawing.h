#pragma once

#include <string>

#include "layout/pipeline_schedule.h"

namespace lockstep::layout {

/// The schedule as text, drawn over time. A column is the time of a piece's forward; a recompute and each
/// half of a backward take as long, transfers take no time. Each stage has a line of micro-batches, below it
/// a line of what is done with them and, if there are chunks, a line of chunks. A legend follows. The middle
/// of a long step is omitted.
std::string draw_schedule(const PipelineShape& shape);

/// A line per schedule with its step, bubble and most activations, for the stages and micro-batches of
/// `shape`, if both halves of a backward take as long as a forward. The schedule of `shape` is marked.
/// Schedules that cannot take the shape are omitted.
std::string compare_schedules(const PipelineShape& shape);

}  // namespace lockstep::layout
