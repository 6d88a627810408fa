#pragma once

#include <string>
#include <string_view>

#include "observe/timeline/timeline.h"

namespace lockstep::observe {

/// A timeline as JSON in Chrome's trace format, which Perfetto opens: a process for each rank, a thread for
/// each row, arrows from sends to receives. `otherData` has format, layout, config hash, steps, notes, and
/// each rank's clock offset with its error in microseconds. Times count from the first slice. The slices of
/// each rank are nested (nest()).
std::string to_chrome_trace(Timeline timeline);

/// Reads what to_chrome_trace() has written, apart from arrows. Throws DataError, which says what is wrong.
Timeline timeline_from_chrome_trace(std::string_view text);

/// One rank as PyTorch's profiler writes it, so that Holistic Trace Analysis reads it: instructions that
/// compute, copy and communicate are kernels of streams, each with the call that launched it. Names of
/// communication begin with "nccl", names of copies with "Memcpy".
std::string to_profiler_trace(const Timeline& timeline, const RankTimeline& rank);

}  // namespace lockstep::observe
