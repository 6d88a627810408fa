#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "observe/timeline/timeline.h"

namespace lockstep::observe {

/// Writes a timeline as JSON in Chrome's trace format, which Perfetto opens: a process for each rank, a
/// thread for each row, arrows from sends to receives. `otherData` has format, layout, config hash, steps,
/// notes, and each rank's clock offset with its error in microseconds. Times count from the first slice. The
/// slices of each rank are nested (nest()). Ranks come one after the other, and only the ends of messages are
/// kept of them.
class ChromeTraceWriter {
 public:
  /// `head`: the timeline, whose ranks' slices are not looked at; `first`: the begin of the first slice of
  /// all ranks; `write` gets the text in pieces, and may throw.
  ChromeTraceWriter(const Timeline& head, double first, std::function<void(std::string_view)> write);
  void add(RankTimeline rank);
  /// Once, after all ranks.
  void finish();

 private:
  struct End {
    int rank, row;
    double begin, end;
  };
  void add_event(const std::string& text);
  void add_arrow(uint64_t message, const End& from, const End& to);

  const double first_;
  std::function<void(std::string_view)> write_;
  bool has_events_ = false;
  std::map<uint64_t, End> sent_;
  std::vector<std::pair<uint64_t, End>> received_;
};

/// All of a timeline at once.
std::string to_chrome_trace(Timeline timeline);

/// Reads what to_chrome_trace() has written, apart from arrows. Throws DataError, which says what is wrong.
Timeline timeline_from_chrome_trace(std::string_view text);

/// One rank as PyTorch's profiler writes it, so that Holistic Trace Analysis reads it: instructions that
/// compute, copy and communicate are kernels of streams, each with the call that launched it. Names of
/// communication begin with "nccl", names of copies with "Memcpy".
std::string to_profiler_trace(const Timeline& timeline, const RankTimeline& rank);

}  // namespace lockstep::observe
