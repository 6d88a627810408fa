#pragma once

#include <optional>
#include <vector>

namespace lockstep::control {

/// Sections of a run in which ranks may be lost without ending the job. All ranks enter a section, and leave
/// it when they have done their part. While all remaining ranks are in it, the job continues without an
/// expendable rank that is lost, stuck or silent (unless a whole host is silent): rank 0 tells the other
/// ranks, and the lost rank's process is ended. When all remaining ranks have left the section, rank 0 tells
/// who they are. A loss at any other time ends the job, and so does any other fault at any time. Thread-safe.
class Muster {
 public:
  virtual ~Muster() = default;
  /// `expendable`: by rank, the same on all ranks. Rank 0 is never expendable, because it judges.
  virtual void enter(std::vector<bool> expendable) = 0;
  /// Ranks that were lost in this section and in earlier ones, in the order of their loss.
  virtual std::vector<int> lost() const = 0;
  /// Their number, for frequent calls.
  virtual int lost_count() const = 0;
  virtual void leave() = 0;
  /// The remaining ranks of the section that this rank left last, ascending. Nothing while others are in it;
  /// returned once.
  virtual std::optional<std::vector<int>> members() = 0;
};

}  // namespace lockstep::control
