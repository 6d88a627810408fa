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

/// A server of a session without a bound. It applies each complete push as one update of its range, in the
/// order of arrival, and answers with its current contents. The executor reports what has come, in each
/// channel's order, then executes what decide() returns until it returns nothing. A server can be copied;
/// nothing is allocated after construction. Violations of the protocol throw InternalError. Not thread-safe.
///
/// All workers together make terms.steps steps, at any speed of each. The coordinator's answer grants a step,
/// and the step is done when its push of the coordinator's range 0 is applied. A worker that asks when all
/// steps are granted is refused only once all are done: until then a step may be lost with its worker, and
/// the waiting worker can make it instead. A stop lowers the number of steps to those granted, rounded up to
/// whole steps of terms.pushes_per_step().
///
/// If a worker is lost, some ranges may have its step's update and others not, and the substitute updates
/// all, because updates cannot be undone. So ranges other than the coordinator's range 0 may get a few
/// updates more or, if pushes to other servers were lost, fewer.
class AsyncServer {
 public:
  /// REQUIRES: no terms.bound; 0 <= server < terms.ranges.size().
  AsyncServer(const program::SessionTerms& terms, int server);

  /// A push has landed completely. `completes`: it carries its step's result, so that all landed pushes of
  /// the step can be applied; the last push does. `stop`: its worker was asked to stop the run; only
  /// coordinators use it.
  void pushed(int worker, int range, int64_t clock, bool completes, bool stop);
  /// `step`: the worker's own count. `version`: none, as for a StaleServer's coordinator.
  void asked(int worker, int64_t step, std::optional<int64_t> version = {});
  void left(int worker);
  /// This worker is lost. Its landed pushes are applied if they are complete, otherwise dropped. After it has
  /// left, this has no effect.
  void lost(int worker);

  std::optional<Decision> decide();

  /// Whether a push of this range has landed and is not complete.
  bool holds(int worker, int range) const;
  /// Steps of all workers that are done; known to the coordinator.
  int64_t steps_done() const { return done_; }
  /// Steps whose workers were lost before they were done; known to the coordinator.
  int64_t steps_lost() const { return steps_lost_; }
  /// For each push: updates of its range by others since its worker pulled.
  const Staleness& staleness() const { return staleness_; }

  /// Everything that decisions depend on, for tests that compare states.
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
