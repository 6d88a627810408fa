#pragma once

#include <string>

#include "layout/pipeline_schedule.h"

namespace lockstep::layout {

/// The schedule as text, in the order of time: a column is the time of a forward of a piece, which a
/// recompute and each half of a backward take as well, while transfers take none. Each stage has a line of
/// micro-batches over one of what is done with them and, where there are chunks, one of chunks; a legend
/// stands below. Of a long step the middle is left out.
std::string draw_schedule(const PipelineShape& shape);

/// Step, bubble and most activations of all schedules for the stages and micro-batches of `shape`, a line
/// each, if both halves of a backward take as long as a forward; its own is marked. Schedules that cannot
/// take the shape are left out.
std::string compare_schedules(const PipelineShape& shape);

}  // namespace lockstep::layout
