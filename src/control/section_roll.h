#pragma once

#include <optional>
#include <vector>

namespace lockstep::control {

/// What rank 0 knows of a section (Muster): which ranks have entered it, left it, or are lost.
class SectionRoll {
 public:
  explicit SectionRoll(int size);

  void expect(std::vector<bool> expendable) { expendable_ = std::move(expendable); }
  void enter(int rank);
  void leave(int rank);
  /// Whether the job can continue without `rank`: all remaining ranks are in the section, and it is
  /// expendable.
  bool can_spare(int rank) const;
  /// REQUIRES: can_spare(rank).
  void lose(int rank);
  /// The remaining ranks, once all of them have left the section; this ends the section.
  std::optional<std::vector<int>> conclude();
  const std::vector<int>& lost() const { return lost_; }

 private:
  enum class Where { outside, inside, done, gone };

  std::vector<Where> where_;
  std::vector<bool> expendable_;
  std::vector<int> lost_;
};

}  // namespace lockstep::control
