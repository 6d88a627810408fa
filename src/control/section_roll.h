#pragma once

#include <optional>
#include <vector>

namespace lockstep::control {

/// What rank 0 knows of a section (Muster): who has entered and left it, and who is gone for good.
class SectionRoll {
 public:
  explicit SectionRoll(int size);

  void expect(std::vector<bool> expendable) { expendable_ = std::move(expendable); }
  void enter(int rank);
  void leave(int rank);
  /// Whether the job goes on without `rank`: everybody who is left is in the section, and it is expendable.
  bool can_spare(int rank) const;
  /// REQUIRES: can_spare(rank).
  void lose(int rank);
  /// Who is left, once all of them have left the section, which is over with that.
  std::optional<std::vector<int>> conclude();
  const std::vector<int>& lost() const { return lost_; }

 private:
  enum class Where { outside, inside, done, gone };

  std::vector<Where> where_;
  std::vector<bool> expendable_;
  std::vector<int> lost_;
};

}  // namespace lockstep::control
