#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/operation.h"
#include "comm/shared/memory_layout.h"

namespace lockstep::comm {

/// One rank's part in the group's collectives, one at a time, as a state machine that never waits.
///
/// An operation is a number of rounds. In each, a rank *posts* its contribution into its slot; *reduces*, in
/// an all_reduce, its share of the round; and *finishes*, which is its last reading of the others' slots.
/// Rounds overlap: while peers are late with one, a rank posts up to kDepth - 1 more.
///
///   all_reduce      post the others' shares; reduce the own one, from own data and the others' slots,
///                   into data and slot; finish: copy the others' shares from their slots
///     (small)       post everything; finish: reduce everything from all slots
///   all_gather      post the own block; finish: copy the others'
///   broadcast       the root posts; finish: copy from the root, which checks that all are in it
///   barrier         post nothing; finish: nothing
///
/// So each byte is copied into shared memory once and out of it once, and is added by one rank. A rank's own
/// share of its slot is free for the result.
class Collective {
 public:
  Collective(const SharedArea& area, int rank);

  void begin(const Operation& operation);  ///< REQUIRES: complete()
  bool complete() const { return finished_ == end_; }
  /// Does the next piece (at most one chunk in each direction) and returns its size in bytes plus a constant,
  /// or kWaiting if it must wait for a peer. Throws CommError if a peer is in another operation.
  int64_t advance();
  static constexpr int64_t kWaiting = -1;

  std::vector<std::string> pending() const;  ///< the ranks that are waited for

 private:
  struct Seen {
    uint64_t posted = 0, reduced = 0, finished = 0;
  };

  bool reduces_shares() const { return operation_.kind == OperationKind::all_reduce && !single_phase_; }
  bool reads_from(int peer) const;
  bool waits_for(int peer) const;
  bool all_posted(uint64_t rounds);
  bool all_reduced(uint64_t rounds);
  bool all_finished(uint64_t rounds);
  void look();
  void check_signatures(uint64_t round) const;
  int64_t post(uint64_t round);
  int64_t reduce_share(uint64_t round);
  int64_t finish(uint64_t round);
  int64_t copy_shares_in(uint64_t round);
  int64_t copy_shares_out(uint64_t round);
  int64_t reduce_all(uint64_t round);
  int64_t copy_slots_out(uint64_t round);

  struct Range {
    int64_t first, count;  // elements
  };
  Range part_of(uint64_t round) const;  // of each block
  Range share_of(int rank, Range part) const;
  std::byte* block(int index) const;

  SharedArea area_;
  const int rank_, size_;
  RankLine& own_;
  // Own counters; between operations all three are equal, and equal on all ranks that have come so far.
  uint64_t posted_ = 0, reduced_ = 0, finished_ = 0;
  Seen seen_;  // the least of the peers' counters, as last seen

  Operation operation_{OperationKind::barrier};
  uint64_t begin_ = 0, end_ = 0;  // rounds of operation_
  uint64_t signature_ = 0;
  int64_t element_bytes_ = 1, elements_per_round_ = 1;
  bool single_phase_ = false;
  std::vector<const std::byte*> inputs_;  // scratch of the reductions
};

}  // namespace lockstep::comm
