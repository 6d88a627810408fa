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

/// A server of a session without a bound: it applies each push as one update of its range, in the order of
/// arrival once it is complete, and answers with what it has. The executor reports what has come, in each
/// channel's order, then carries out what decide() says until it says nothing. A copy of a server is a
/// server; nothing is allocated after construction. Whatever breaks the protocol throws InternalError. Not
/// thread-safe.
///
/// All workers together make terms.steps steps, however fast each is: the coordinator's answer grants a step,
/// and the step is done when its push of the coordinator's range 0 is applied. Who asks when all steps are
/// granted is refused only once all are done: until then a step may be lost with its worker, and whoever
/// waits here can make it instead. A stop lowers the number of steps to what is granted, and as many as are
/// missing to a step of terms.pushes_per_step().
///
/// Of a lost worker's step some ranges may be updated and others not, and its substitute updates all: nothing
/// can be taken back. So ranges other than the coordinator's range 0 may see a few updates more or, if the
/// pushes to other servers were lost, fewer.
class AsyncServer {
 public:
  /// REQUIRES: no terms.bound; 0 <= server < terms.ranges.size().
  AsyncServer(const program::SessionTerms& terms, int server);

  /// A push has landed in full. `completes`: it says what its step came to, so that all that has landed of
  /// the step can be applied; the last one does. `stop`: its worker was asked to stop the run; heeded by
  /// coordinators.
  void pushed(int worker, int range, int64_t clock, bool completes, bool stop);
  /// `step` is the worker's own count. `version`: none, as a StaleServer's coordinator is asked.
  void asked(int worker, int64_t step, std::optional<int64_t> version = {});
  void left(int worker);
  /// Nothing more comes of this worker. What has landed is applied where it is complete, and else forgotten.
  /// Once it has left, that is no loss.
  void lost(int worker);

  std::optional<Decision> decide();

  /// A push of this range has landed, and is not complete.
  bool holds(int worker, int range) const;
  /// Of all workers; known to the coordinator.
  int64_t steps_done() const { return done_; }
  /// Granted to workers that were lost before they were done; known to the coordinator.
  int64_t steps_lost() const { return steps_lost_; }
  /// At each push: updates of its range by others since its worker has pulled.
  const Staleness& staleness() const { return staleness_; }

  /// All that decisions depend on, for tests that tell states apart.
  auto state() const {
    return std::tie(attendance_, target_, granted_, done_, answering_, next_range_, over_, updates_, read_,
                    held_, landed_, asking_);
  }

 private:
  struct Landed {
    int worker;
    int range;
    auto state() const { return std::tie(worker, range); }
  };

  int64_t& read(int worker, int range);
  Decision apply(Landed push);
  std::optional<Decision> meet_first_ask();
  Decision answer_range();

  int64_t pushes_per_step_;
  int ranges_;
  bool coordinator_;
  Attendance attendance_;
  Staleness staleness_;
  int64_t target_;       // coordinator: steps in all
  int64_t granted_ = 0;  // coordinator: done, or with a worker that is there
  int64_t done_ = 0;
  int64_t steps_lost_ = 0;
  int answering_ = -1;            // worker
  int next_range_ = 0;            // of the answer
  bool over_ = false;             // nothing is decided any more
  std::vector<int64_t> updates_;  // by range
  std::vector<int64_t> read_;     // by worker and range: updates at its last pull
  std::vector<Landed> held_;      // not complete; in order of arrival
  std::vector<Landed> landed_;    // to be applied, in this order
  std::vector<int> asking_;       // workers, in order of arrival
};

}  // namespace lockstep::run
