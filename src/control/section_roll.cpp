#include "control/section_roll.h"

#include <algorithm>
#include <utility>

#include "base/ensure.h"
#include "base/index.h"

namespace lockstep::control {

SectionRoll::SectionRoll(int size)
    : where_(static_cast<size_t>(size), Where::outside), expendable_(where_.size(), false) {}

void SectionRoll::enter(int rank) {
  if (nth(where_, rank) == Where::outside) nth(where_, rank) = Where::inside;
}

void SectionRoll::leave(int rank) {
  if (nth(where_, rank) == Where::inside) nth(where_, rank) = Where::done;
}

bool SectionRoll::can_spare(int rank) const {
  return rank > 0 && rank < static_cast<int>(expendable_.size()) && expendable_[static_cast<size_t>(rank)] &&
         std::ranges::find(where_, Where::outside) == where_.end();
}

void SectionRoll::lose(int rank) {
  ensure(can_spare(rank) && nth(where_, rank) != Where::gone, "a rank that can be spared is lost once");
  nth(where_, rank) = Where::gone;
  lost_.push_back(rank);
}

std::optional<std::vector<int>> SectionRoll::conclude() {
  std::vector<int> left;
  for (int rank = 0; rank < static_cast<int>(where_.size()); ++rank) {
    if (nth(where_, rank) == Where::gone) continue;
    if (nth(where_, rank) != Where::done) return {};
    left.push_back(rank);
  }
  for (const int rank : left) nth(where_, rank) = Where::outside;
  return left;
}

}  // namespace lockstep::control
