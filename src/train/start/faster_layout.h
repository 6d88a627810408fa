#pragma once

#include <cstdint>
#include <optional>

#include "observe/advice.h"
#include "observe/run_report.h"
#include "train/start/world.h"
#include "train/worker/worker.h"

namespace lockstep::train {

/// Of the layouts that advice would compare (plan::other_layouts), in as many processes, the one whose steps
/// are predicted to be fastest for this run: at least 5 % faster than its own. COLLECTIVE at the end of a
/// run, of which `report` tells; `steps`: those that it has made itself. The result is known to rank 0.
///
/// Nothing is measured or predicted unless communication is what the run waits for, and its steps have taken
/// five seconds at least. Then ranks measure their messages for some seconds at most, and rank 0 replays
/// programs with these times and with those of the run's own kernels, or of parallel.profile. Nothing is the
/// result if no prediction is possible (GPUs, mode=stale and mode=async, fewer cores than processes,
/// recomputation without a profile), if ten seconds are over before a program is looked at, or if the run's
/// own step is predicted wrongly, by more than a factor of two. Nor does the run fail by what fails here: a
/// warning says so.
std::optional<observe::FasterLayout> predict_faster_layout(World& world, const Worker& worker,
                                                           const observe::RunReport& report, int64_t steps);

}  // namespace lockstep::train
