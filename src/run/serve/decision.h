#pragma once

#include <cstdint>
#include <variant>

namespace lockstep::run {

inline constexpr int kNoCopy = -1;

// What a server does next, as StaleServer and AsyncServer decide it and an executor carries it out: in the
// order of the decisions, each as if at one instant. Ranges are numbered within the server.
//
// An update writes where answers of current contents are read, so they must have been sent, or staged, before
// it. In STALE only those to workers that are ahead can still be on their way then. What an update frees or
// writes besides, which is landing slots and kept copies, nobody can still be reading.

/// STALE: the pushes of one clock of all workers become one update of all ranges, folded in the order of the
/// tree whatever the order of arrival.
struct ApplyClock {
  int64_t clock;
  int slot;  ///< where the pushes have landed, free again afterwards
  int keep;  ///< the copy that takes the contents before the update, or kNoCopy
  bool operator==(const ApplyClock&) const = default;
};

/// ASYNC: one push, which lies in slot 0, becomes one update of its range.
struct ApplyPush {
  int worker;
  int range;
  int64_t clock;
  int64_t staleness;  ///< updates of the range by others since this push's worker read it
  bool operator==(const ApplyPush&) const = default;
};

/// A worker gets the contents of a range. Of an ask, the answers for all ranges follow each other, and
/// nothing is applied between them. The first one of the coordinator's lets the worker's step begin.
struct AnswerPull {
  int worker;
  int range;
  int64_t version;  ///< updates that the contents have seen. STALE: clocks; ASYNC: pushes of this range
  int copy;         ///< where they are, or kNoCopy: they are current
  bool operator==(const AnswerPull&) const = default;
};

/// The step that the worker asked for is not to be: it leaves. Of coordinators only.
struct RefuseStep {
  int worker;
  int64_t step;
  bool operator==(const RefuseStep&) const = default;
};

/// STALE: a worker was lost, and without it no clock is complete. Nothing else is decided: the job ends.
struct ReportLost {
  int worker;
  bool operator==(const ReportLost&) const = default;
};

/// Every worker has left or is lost, and all that was pushed is applied. Nothing else is decided.
struct EndSession {
  bool operator==(const EndSession&) const = default;
};

using Decision = std::variant<ApplyClock, ApplyPush, AnswerPull, RefuseStep, ReportLost, EndSession>;

}  // namespace lockstep::run
