#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <variant>
#include <vector>

#include "program/session_terms.h"

namespace lockstep::run {

/// To a server: the worker wants to begin a step with this version; none: the server decides.
struct AskServer {
  int server;
  int64_t step;
  std::optional<int64_t> version;
  bool operator==(const AskServer&) const = default;
};

/// All ranges are there.
struct ComputeStep {
  int64_t step;
  int64_t version;  ///< STALE: of all ranges. ASYNC: of the coordinator's range 0
  bool operator==(const ComputeStep&) const = default;
};

/// To a server, when the step has computed the range's gradient. The last push of a step to a server that
/// needs the step's result also waits for that.
struct PushRange {
  int server;
  int range;
  int64_t clock;
  int slot;  ///< where it lands
  bool stop;
  bool operator==(const PushRange&) const = default;
};

/// To a server: the last message.
struct LeaveServer {
  int server;
  bool operator==(const LeaveServer&) const = default;
};

using WorkerMove = std::variant<AskServer, ComputeStep, PushRange, LeaveServer>;

/// One range of a server.
struct RangeOfServer {
  int server;
  int range;
  bool operator==(const RangeOfServer&) const = default;
};

/// A worker in a session with StaleServers or AsyncServers. The executor executes what next() returns, in
/// this order, until it returns nothing. Then it waits for an answer and reports it, or the worker has left.
/// A worker can be copied; nothing is allocated after construction. Violations of the protocol throw
/// InternalError. Not thread-safe.
class SessionWorker {
 public:
  /// `push_order`: every range once, in the order in which a step's program pushes.
  SessionWorker(const program::SessionTerms& terms, std::vector<RangeOfServer> push_order);

  std::optional<WorkerMove> next();

  /// The contents of a range have come, or will come: the executor waits for the bytes before ComputeStep.
  void answered(int server, int range, int64_t version);
  /// The coordinator refuses the step.
  void refused();
  /// Asks to stop the run. The coordinator learns of it with the next push; without a next push it never
  /// does.
  void stop() { stop_ = true; }

  bool has_left() const { return phase_ == Phase::leaving && next_ == servers_; }
  /// Number of steps that were begun and pushed.
  int64_t steps() const { return step_; }

  /// Everything that moves depend on, for tests that compare states.
  auto state() const { return std::tie(phase_, step_, next_, missing_, version_, stop_, answers_); }

 private:
  enum class Phase { pulling, pushing, leaving };

  std::optional<WorkerMove> pull();
  WorkerMove push();

  std::optional<int> bound_;
  int servers_, slots_;
  std::vector<int> ranges_;  // by server
  std::vector<RangeOfServer> push_order_;
  Phase phase_ = Phase::pulling;
  int64_t step_ = 0;
  int next_ = 0;          // pulling: server to ask; pushing: place in the order; leaving: server
  int missing_;           // answers of this step
  int64_t version_ = -1;  // of the coordinator's first answer
  bool stop_ = false;
  std::vector<int> answers_;  // by server: of this step
};

}  // namespace lockstep::run
