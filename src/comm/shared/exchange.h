#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/operation.h"
#include "comm/shared/memory_layout.h"

namespace lockstep::comm {

/// One rank's part in exchanges, one at a time, as a state machine that never waits. There is a ring of cells
/// from each rank to each other: the sender fills cells, the receiver empties them, both as far as possible.
/// What fits into a ring is buffered.
class Exchange {
 public:
  /// `reserve_outbox` makes the memory of this rank's outgoing rings usable; called before its first send.
  Exchange(const SharedArea& area, int rank, std::function<void()> reserve_outbox);

  void begin(const Operation& operation);  ///< REQUIRES: complete(), and that `operation` stays until it is
  bool complete() const { return left_ == 0; }
  /// Moves at most one cell of each pair and direction. Returns their bytes plus a constant, or kWaiting if
  /// nothing can be moved. Throws CommError if a message does not have the size that its receiver expects.
  int64_t advance();
  static constexpr int64_t kWaiting = -1;

  std::vector<std::string> pending() const;  ///< the transfers that are not complete

 private:
  /// The transfers with one peer in one direction: they take place one after the other.
  struct Queue {
    int peer;
    Transfer::Direction direction;
    std::vector<const Transfer*> transfers;
    size_t next = 0;
    int64_t moved = 0;  // bytes of the next one
    bool sends() const { return direction == Transfer::Direction::send; }
    bool complete() const { return next == transfers.size(); }
  };
  /// This rank's end of a ring.
  struct End {
    uint64_t own = 0;    // cells that it is through with
    uint64_t other = 0;  // cells that the peer was through with, when last seen
  };

  int64_t send_cell(Queue& queue);
  int64_t receive_cell(Queue& queue);
  void moved(Queue& queue, int64_t bytes);

  SharedArea area_;
  const int rank_;
  std::function<void()> reserve_outbox_;  // empty once it was called
  std::vector<End> out_, in_;             // by peer
  std::vector<Queue> queues_;
  size_t left_ = 0;  // queues that are not complete
};

}  // namespace lockstep::comm
