#include "program/members.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <set>

namespace lockstep::program {
namespace {

constexpr size_t kLongestList = 8;

}  // namespace

Members::Members(std::vector<int> ranks) {
  if (ranks.empty()) return;
  const int64_t stride = ranks.size() > 1 ? int64_t{ranks[1]} - ranks[0] : 1;
  bool is_run = stride >= 1;
  for (size_t i = 1; i < ranks.size() && is_run; ++i) is_run = int64_t{ranks[i]} - ranks[i - 1] == stride;
  if (is_run)
    *this = run(ranks[0], static_cast<int>(ranks.size()), static_cast<int>(stride));
  else
    list_ = std::move(ranks);
}

Members Members::run(int first, int count, int stride) {
  Members members;
  members.first_ = first;
  members.count_ = count;
  members.stride_ = count > 1 ? stride : 1;
  return members;
}

int Members::index_of(int rank) const {
  if (is_run()) {
    const int64_t distance = int64_t{rank} - first_;
    const bool inside = distance >= 0 && distance % stride_ == 0 && distance / stride_ < count_;
    return inside ? static_cast<int>(distance / stride_) : -1;
  }
  const auto found = std::find(list_.begin(), list_.end(), rank);
  return found == list_.end() ? -1 : static_cast<int>(found - list_.begin());
}

bool Members::are_distinct_below(int world_size) const {
  if (empty()) return false;
  if (is_run()) return first_ >= 0 && first_ + (int64_t{count_} - 1) * stride_ < world_size;
  const std::set<int> distinct(list_.begin(), list_.end());
  return distinct.size() == list_.size() && *distinct.begin() >= 0 && *distinct.rbegin() < world_size;
}

std::vector<int> Members::list() const {
  std::vector<int> ranks;
  for (const int rank : *this) ranks.push_back(rank);
  return ranks;
}

std::string to_text(const Members& members) {
  const size_t size = members.size();
  const int stride = size > 1 ? members[1] - members[0] : 1;
  // What is kept as a run equals the run of its ends.
  if (size <= kLongestList || stride < 1 ||
      members != Members::run(members[0], static_cast<int>(size), stride))
    return fmt::format("{}", fmt::join(members.list(), " "));
  return fmt::format("{}..{}{}", members[0], members[size - 1],
                     stride == 1 ? "" : fmt::format("/{}", stride));
}

}  // namespace lockstep::program
