#pragma once

#include <optional>
#include <vector>

namespace lockstep::control {

/// Sections of a run in which ranks may be lost without ending the job. All ranks enter a section and leave
/// it when they have done their part. While everybody who is left is in it, rank 0 does without an expendable
/// rank that is lost, stuck or silent (but for a host that is silent as a whole): it tells the others, that
/// rank's process is ended, and the job goes on. When everybody who remains has left the section, rank 0 says
/// who they are. A loss at any other time ends the job, and so does any other fault at all times.
/// Thread-safe.
class Muster {
 public:
  virtual ~Muster() = default;
  /// `expendable`: by rank, the same on all. Rank 0 is not: it judges.
  virtual void enter(std::vector<bool> expendable) = 0;
  /// Ranks that were lost in this section and all before it, in the order of their loss.
  virtual std::vector<int> lost() const = 0;
  /// How many these are, for whoever asks often.
  virtual int lost_count() const = 0;
  virtual void leave() = 0;
  /// Of the section that this rank has left last: who is left, ascending. Nothing while others are in it;
  /// told once.
  virtual std::optional<std::vector<int>> members() = 0;
};

}  // namespace lockstep::control
