#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "program/session_terms.h"
#include "run/serve/attendance.h"
#include "run/serve/decision.h"
#include "run/serve/staleness.h"

namespace lockstep::run {

/// A server of a session with a bound. It applies clock c, which makes version c + 1, when the last push of
/// that clock has come. A worker's step t reads a version of at least t - bound, the same version from all
/// servers. The executor reports what has come, in each channel's order, then executes what decide() returns
/// until it returns nothing. A server can be copied; nothing is allocated after construction. Violations of
/// the protocol throw InternalError. Not thread-safe.
///
/// A worker first asks the coordinator, which answers with its current version v, or waits until that is
/// fresh enough. Then the worker asks the other servers for exactly v. With bound 1 and two workers, of which
/// the second is slow, as step<version read:
///
///     worker 0   0<0  push 0   1<0  push 1   asks for step 2: waits for version 1 ...      2<1  push 2
///     worker 1   0<0 ...............................................  push 0   1<1  ...
///     version    0                                                    1
///
/// Why `bound` copies suffice at the other servers. A worker that asks for v in step t has pushed only clocks
/// up to t - 1. So this server's version u is at most t, and v >= t - bound: v is among u - bound ... u.
/// Clock c overwrites version c - bound, when all have pushed clock c and so are beyond step c - 1. Workers
/// in step c have their answers, because they push after them; workers in a later step read at least c + 1 -
/// bound. So an answer that is still being sent from a copy is safe, too.
///
/// Why a push finds its slot free. A push has clock t only if this server has answered step t with a version
/// of at least t - bound. So clocks before that are applied, and bound + 1 slots serve t - bound ... t.
///
/// Why all end at the same step. When a push asks to stop, the coordinator refuses steps that no worker has
/// begun yet. A step that some worker has begun is begun by all, because the coordinator lets each worker
/// begin it.
class StaleServer {
 public:
  /// REQUIRES: terms.bound; 0 <= server < terms.ranges.size().
  StaleServer(const program::SessionTerms& terms, int server);

  /// A push has landed completely. `stop`: its worker was asked to stop the run; only coordinators use it.
  void pushed(int worker, int range, int64_t clock, bool stop);
  /// `version`: as the coordinator has answered; none if this is the coordinator.
  void asked(int worker, int64_t step, std::optional<int64_t> version);
  void left(int worker);
  /// This worker is lost. After it has left, this has no effect.
  void lost(int worker);

  std::optional<Decision> decide();

  /// Number of applied clocks.
  int64_t version() const { return version_; }
  /// For each push: the version that it was applied to, minus the version that its worker had read.
  const Staleness& staleness() const { return staleness_; }

  /// Everything that decisions depend on, for tests that compare states.
  auto state() const {
    return std::tie(attendance_, version_, end_, left_at_, answering_, next_range_, lost_, over_, wanted_,
                    read_, landed_);
  }

 private:
  int slot(int64_t clock) const { return program::landing_slot(clock, slots_); }
  int64_t& read(int worker, int64_t step);
  bool may_answer(int worker) const;
  Decision apply();
  Decision begin_answer(int worker);
  Decision answer_range();

  int workers_, ranges_, bound_, slots_, copies_;
  bool coordinator_;
  Attendance attendance_;
  Staleness staleness_;
  int64_t version_ = 0;
  int64_t end_;                  // coordinator: the first step that nobody begins
  int64_t left_at_ = -1;         // steps of those who have left
  int answering_ = -1;           // worker
  int next_range_ = 0;           // of the answer
  int lost_ = -1;                // worker
  bool over_ = false;            // nothing is decided any more
  std::vector<int64_t> wanted_;  // by worker that asks: version
  std::vector<int64_t> read_;    // by worker and slot: version
  std::vector<int> landed_;      // by slot: pushes
};

}  // namespace lockstep::run
