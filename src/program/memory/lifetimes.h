#pragma once

#include <cstddef>
#include <vector>

#include "program/memory/interval_index.h"
#include "program/program.h"

namespace lockstep::program {

/// Finds buffers that must not share bytes: two buffers of which neither is finished before the other begins.
/// A buffer is finished before another begins if every access to it happens before every access to the other,
/// by the order of lanes and the declared dependencies within one iteration. Buffers without accesses never
/// conflict.
///
/// Not thread-safe.
///
/// Lanes are totally ordered. So the accesses to `a` on a lane span an interval of it. The lane's
/// instructions that come neither before all accesses to `b` nor after all of them are an interval, too. If
/// these two intervals meet on some lane, a and b are in use at the same time. If they meet nowhere and a has
/// accesses both before and after b, then a encloses b in program order. Otherwise one is finished before the
/// other begins. A query therefore asks one index per lane and one in program order, and looks at no pair of
/// buffers that may share bytes.
class Lifetimes {
 public:
  /// For the buffers in the arena.
  explicit Lifetimes(const Program& program);

  /// From now on queries find the buffer.
  void enter(int buffer);

  /// Entered buffers in use together with `buffer`, each once, in no particular order. Valid until the next
  /// call.
  const std::vector<int>& in_use_with(int buffer);

 private:
  /// One buffer on one lane, in places on the lane from 1.
  struct Use {
    int first, last;                   ///< accesses; last is 0 if there are none
    int unordered_from, unordered_to;  ///< what is outside happens before or after all accesses on any lane
  };

  Use& use(int buffer, size_t lane) { return uses_[static_cast<size_t>(buffer) * lanes_ + lane]; }
  void collect(const Program& program);
  void build_indices();

  size_t lanes_, buffers_;
  std::vector<Use> uses_;                      ///< by buffer, lane
  std::vector<IntervalIndex::Item> in_order_;  ///< by buffer: its accesses in program order; last: -1 if none
  std::vector<IntervalIndex> by_lane_;
  IntervalIndex by_program_;
  std::vector<int> found_;
  int queries_ = 0;
  std::vector<int> found_by_;  ///< by buffer: the last query that found it
};

}  // namespace lockstep::program
