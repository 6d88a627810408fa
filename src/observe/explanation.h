#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "observe/advice.h"
#include "observe/phase_clock.h"

namespace lockstep::observe {

/// Milliseconds by name, the most first.
using NamedTimes = std::vector<std::pair<std::string, double>>;

/// What one rank measured of its time, in ms.
struct RankTime {
  int rank = 0;
  int stage = -1;  ///< of a pipeline, or 0; -1: the rank only serves
  std::array<double, kRunPhases> phases_ms{};
  // Of steps. On devices whose lanes are streams, computing is told apart from launches and the host by a
  // sample of steps.
  bool tells_computing = true;
  int64_t sampled_steps = 0;  ///< of such devices; 0: none, so that nothing is told apart
  NamedTimes computing_ms;    ///< by kind of op, or of instruction; of a sample, scaled to all steps
  NamedTimes preparing_ms;    ///< of threads that prepare data, all together: read, decode, transform
  double waited_ms = 0;       ///< nothing could run, because of communication between replicas
  double stage_wait_ms = 0;   ///< likewise, between stages of a pipeline
  double handling_ms = 0;     ///< the computing thread passed messages on, and summed what they brought
  double data_wait_ms = 0;    ///< waiting for data, and moving them into place
  /// The time that the machine's speed would allow for the same operations, as a share of what a step took;
  /// and the share of the device's 16-bit products that layers use (MFU). Absent: not known.
  std::optional<double> speed_of_light, flops_utilization;
};
std::string to_text(const RankTime& time);
/// Throws DataError.
RankTime rank_time_from_text(std::string_view text);

/// The parts of a run's wall clock. They do not overlap.
enum class TimePart {
  start,          ///< until the first step begins
  compute,        ///< kernels and updates
  communication,  ///< that nothing hid, without waiting for slower ranks
  bubble,         ///< a stage of a pipeline waits for another stage
  data,           ///< waiting for data
  slower_ranks,   ///< waiting for ranks that compute longer
  host,           ///< the rest of steps: launches, the loop, reports
  evaluation,
  checkpoints,
  end,  ///< until the report
};
inline constexpr int kTimeParts = 10;
std::string_view name_of(TimePart part);

struct RankExplanation {
  int rank = 0;
  bool only_serves = false;  ///< has no steps of its own
  double wall_ms = 0;        ///< from the start of the process
  std::array<double, kTimeParts> parts_ms{};
  NamedTimes computing_ms;                                  ///< what `compute` consists of
  NamedTimes preparing_ms;                                  ///< as in RankTime; of no part
  std::optional<double> speed_of_light, flops_utilization;  ///< as in RankTime

  double part_ms(TimePart part) const { return nth(parts_ms, static_cast<int>(part)); }
  double share(TimePart part) const { return wall_ms > 0 ? part_ms(part) / wall_ms : 0; }
  /// Of all parts: 1, unless more was measured than passed.
  double explained() const;
  bool operator==(const RankExplanation&) const = default;
};

struct Explanation {
  int64_t step = 0;      ///< steps complete
  bool goes_on = false;  ///< of rank 0 alone, while the run goes on
  std::vector<RankExplanation> ranks;
  std::vector<std::string> notes;
  std::vector<Advice> advice;  ///< of a run, on rank 0 alone; the most expensive first

  /// The ranks without those that only serve; all ranks if no worker is among them.
  std::vector<RankExplanation> workers() const;
  /// Of the workers.
  RankExplanation mean() const;
  /// The worker that computed, and waited for data, for longest.
  const RankExplanation& slowest() const;
  bool operator==(const Explanation&) const = default;
};

/// Where the time went: a pure function of what ranks measured. A rank waits for slower ranks for as long as
/// the slowest replica of its stage works longer than it does, at most for what it waited for replicas at
/// all. REQUIRES: at least one rank.
Explanation explain(std::span<const RankTime> ranks, int64_t step, bool goes_on);

/// One JSON object in a line, and back. Throws DataError, which says what is wrong.
std::string to_json(const Explanation& explanation);
Explanation explanation_from_json(std::string_view text);

/// "61 % of the speed of light, MFU 43 %", as far as it is known; "" otherwise.
std::string light_text(const RankExplanation& rank);
/// A table for people; every line ends with a newline.
std::string describe(const Explanation& explanation);
/// "compute 61 %, data 20 %, start 12 %": of the mean rank, the four that took longest, if at least 1 %.
std::string summary(const Explanation& explanation);

}  // namespace lockstep::observe
