#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace lockstep::program {

/// What servers and workers have agreed on before a session begins. A session lasts from one meeting of all
/// workers to the next. Steps, clocks and versions count from 0 in each session.
///
/// Parameters are cut into ranges, each of which belongs to one server. A step of a worker needs all ranges
/// and makes one push of each; the push of step t has clock t. Server 0 is the coordinator: it says which
/// steps may begin.
struct SessionTerms {
  int workers = 1;
  std::vector<int> ranges = {1};  ///< number of ranges of each server, at least one
  /// STALE: the number of clocks that a step's parameters may lack, at least 1. None: ASYNC.
  std::optional<int> bound;
  /// Steps after which all leave. STALE: each worker's. ASYNC: of all workers together.
  int64_t steps = 0;
  /// ASYNC: number of pushes that count as one step of all; 0: one per worker.
  int pushes = 0;
  /// ASYNC: the most bytes of a range that an answer sends in one message.
  int64_t slice_bytes = int64_t{256} << 10;

  int pushes_per_step() const { return pushes > 0 ? pushes : workers; }
  /// The message of an answer that begins at this byte of a range.
  int64_t slice_at(int64_t begin, int64_t range_bytes) const {
    const int64_t left = range_bytes - begin;
    return bound || left < slice_bytes ? left : slice_bytes;
  }
};

/// Throws InternalError if no session can have such terms.
void check(const SessionTerms& terms);

/// The number of slots in which pushes of a worker and range land in turn, because so many may be in flight
/// or wait to be applied: those of clocks v to v + bound, if the server's version is v (StaleServer says
/// why). In ASYNC each push is applied before the next one can be made.
int landing_slots(const SessionTerms& terms);
inline int landing_slot(int64_t clock, int slots) { return static_cast<int>(clock % slots); }

/// ASYNC: the number of messages of an answer that may be on their way to a worker. A server keeps room for
/// as many, for each worker.
inline constexpr int kSlicesUnderWay = 8;

/// The number of older versions that a server keeps besides the current one. The coordinator keeps none: it
/// answers with what it has. ASYNC: none.
int kept_copies(const SessionTerms& terms, int server);

}  // namespace lockstep::program
