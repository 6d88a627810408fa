#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/index.h"
#include "comm/message_port.h"
#include "program/session_terms.h"
#include "run/serve/served_range.h"

namespace lockstep::run {

/// A server's answers to one worker in ASYNC: the contents of its ranges, one after the other, in slices. A
/// slice is copied when there is room for it, and sent from the copy. So a worker that receives slowly, or
/// not at all, holds a few slices and delays nobody: updates write where no message reads. Later slices may
/// have seen more updates than earlier ones. Not thread-safe.
class SlicedAnswer {
 public:
  /// The ranges must outlive it; each has an outbox of this worker, in which all of them are sent.
  SlicedAnswer(comm::MessagePort& to_workers, int rank, int worker, const program::SessionTerms& terms,
               const std::vector<ServedRange>& ranges);

  /// Sends this range after those before it. REQUIRES: the next one, or the first one if all are sent.
  void add(int range);
  /// Copies and sends slices as far as there is room; true if there was anything to do.
  bool advance();
  /// Whether nothing of the range is to be sent, or on its way.
  bool is_sent(int range);
  /// When the first slice of a range of the answer was sent.
  Clock::time_point began(int range) const { return nth(began_, range); }
  /// The worker is lost: nothing more is sent to it. What is on its way may stay there.
  void drop();

 private:
  struct Slice {
    comm::Ticket ticket;
    int range = -1;  // whose bytes these are; -1: they are sent
  };

  bool has_left(Slice& slice);

  comm::MessagePort& to_workers_;
  int rank_, worker_;
  program::SessionTerms terms_;
  const std::vector<ServedRange>& ranges_;
  int added_ = 0;                         // ranges of the answer
  int range_ = 0;                         // of the next slice
  int64_t offset_ = 0;                    // where it begins
  int turn_ = 0;                          // its place
  std::vector<Clock::time_point> began_;  // by range
  std::array<Slice, program::kSlicesUnderWay> slices_;
};

}  // namespace lockstep::run
