#pragma once

#include <cstdint>
#include <variant>

namespace lockstep::run {

inline constexpr int kNoCopy = -1;

// What a server does next. StaleServer and AsyncServer decide it; an executor executes decisions in their
// order, each as if at one instant. Ranges are numbered within the server.
//
// An update overwrites the current contents that answers read, so these answers must have been sent, or
// staged, before it. In STALE only answers to workers that are ahead can still be in flight then. What an
// update frees or writes besides (landing slots and kept copies) is not being read any more.

/// STALE: the pushes of one clock of all workers become one update of all ranges. They are folded in the
/// order of the tree, for any order of arrival.
struct ApplyClock {
  int64_t clock;
  int slot;  ///< where the pushes have landed, free again afterwards
  int keep;  ///< the copy that takes the contents before the update, or kNoCopy
  bool operator==(const ApplyClock&) const = default;
};

/// ASYNC: one push, which is in slot 0, becomes one update of its range.
struct ApplyPush {
  int worker;
  int range;
  int64_t clock;
  int64_t staleness;  ///< updates of the range by others since this push's worker read it
  bool operator==(const ApplyPush&) const = default;
};

/// A worker gets the contents of a range. The answers to one request, for all ranges, follow each other, and
/// nothing is applied between them. The coordinator's first answer grants the worker's step.
struct AnswerPull {
  int worker;
  int range;
  int64_t version;  ///< updates that the contents have seen. STALE: clocks; ASYNC: pushes of this range
  int copy;         ///< where they are, or kNoCopy: they are current
  bool operator==(const AnswerPull&) const = default;
};

/// The worker's step is refused, and the worker leaves. Only from coordinators.
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

/// Every worker has left or is lost, and all pushes are applied. Nothing else is decided.
struct EndSession {
  bool operator==(const EndSession&) const = default;
};

using Decision = std::variant<ApplyClock, ApplyPush, AnswerPull, RefuseStep, ReportLost, EndSession>;

}  // namespace lockstep::run
