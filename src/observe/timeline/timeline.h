#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep::observe {

/// What ranks did, and when: rows of slices, with arrows between them. It knows neither programs nor how
/// ranks talk. All times are in microseconds.

enum class SliceKind {
  compute,        ///< an instruction that computes
  kernel,         ///< one op's kernel, within a compute slice
  copy,           ///< an instruction that copies, or loads data
  communication,  ///< from its start to its completion
  wait,           ///< nothing could run; the name says what it waited for
  phase,          ///< a step, an evaluation, a checkpoint: of the loop that runs programs
};
inline constexpr int kSliceKinds = 6;
std::string_view name_of(SliceKind kind);

struct TimelineSlice {
  int row = 0;  ///< id of a TimelineRow of the same rank
  SliceKind kind = SliceKind::compute;
  std::string name;
  double begin = 0, end = 0;
  using Value = std::variant<int64_t, double, std::string>;
  std::vector<std::pair<std::string, Value>> arguments;  ///< for people: bucket, micro-batch, bytes, ...
  /// Messages that leave with this slice, and those that arrive with it: numbers that both ends derive.
  std::vector<uint64_t> sends, receives;

  bool operator==(const TimelineSlice&) const = default;
};

struct TimelineRow {
  int id = 0;
  std::string name;
  bool operator==(const TimelineRow&) const = default;
};

struct RankTimeline {
  int rank = 0;
  std::string host;
  std::vector<TimelineRow> rows;
  std::vector<TimelineSlice> slices;
  /// What was added to this rank's times so that they are rank 0's, and how far they may still be off.
  double clock_offset = 0, clock_error = 0;
  double device_error = 0;     ///< likewise, of times that a device took; 0: the host took them
  int64_t dropped_slices = 0;  ///< for which there was no room
  bool operator==(const RankTimeline&) const = default;
};

struct Timeline {
  std::string source;  ///< "measured", or how it was predicted
  std::string layout, config_hash;
  int64_t first_step = 0, last_step = 0;  ///< counted from 1, both included
  std::vector<std::string> notes;         ///< what is missing, and why
  std::vector<RankTimeline> ranks;
  bool operator==(const Timeline&) const = default;
};

/// One rank's part as text, for the rank that writes the file, and back. Throws DataError.
std::string to_text(const RankTimeline& rank);
RankTimeline rank_timeline_from_text(std::string_view text);

/// The begin of its first slice; infinity without slices.
double first_begin(const RankTimeline& rank);

/// Moves a rank's times by `offset`, and notes it with its error.
void shift(RankTimeline& rank, double offset, double error);

/// Makes slices of a row follow or enclose each other: a slice that begins within one that ends before it
/// begins when that one ends, and keeps its own begin as the argument "started_us". Sorts by row and begin.
void nest(RankTimeline& rank);

}  // namespace lockstep::observe
