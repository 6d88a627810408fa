#pragma once

#include <cstdint>
#include <functional>

#include "observe/sinks/sink.h"

namespace lockstep::observe {

/// The records of a resumed run that metrics.jsonl holds, from `first_step` to the step that it resumes from,
/// in order: for sinks that may lack some. They have the time of the call, since the file has none. REQUIRES:
/// metrics.jsonl is open, and so has no later steps.
void for_each_kept_record(const RunFacts& facts, int64_t first_step,
                          const std::function<void(const MetricsRecord&)>& visit);

}  // namespace lockstep::observe
