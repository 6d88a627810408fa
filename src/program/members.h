#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

namespace lockstep::program {

/// World ranks in the order of their ranks within a group. A run of ranks at equal distances, such as "all",
/// takes a few bytes at any length, so that the programs of n ranks do not hold n times n numbers.
class Members {
 public:
  Members() = default;
  Members(std::initializer_list<int> ranks) : Members(std::vector<int>(ranks)) {}
  Members(std::vector<int> ranks);  // not explicit: a list of ranks is what members are
  /// `count` ranks from `first` on, `stride` apart. REQUIRES: count, stride >= 1, and the last one is an int.
  static Members run(int first, int count, int stride = 1);

  size_t size() const { return is_run() ? static_cast<size_t>(count_) : list_.size(); }
  bool empty() const { return size() == 0; }
  int operator[](size_t index) const {
    return is_run() ? first_ + static_cast<int>(index) * stride_ : list_[index];
  }
  /// The rank's place in the group, or -1.
  int index_of(int rank) const;
  bool contains(int rank) const { return index_of(rank) >= 0; }
  /// Whether they are different ranks from 0 to world_size - 1, at least one.
  bool are_distinct_below(int world_size) const;
  std::vector<int> list() const;
  bool operator==(const Members&) const = default;  // a list that is a run is kept as one

  class Iterator {
   public:
    Iterator(const Members& members, size_t index) : members_(&members), index_(index) {}
    int operator*() const { return (*members_)[index_]; }
    Iterator& operator++() {
      ++index_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    const Members* members_;
    size_t index_;
  };
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, size()}; }

 private:
  bool is_run() const { return count_ > 0; }

  int first_ = 0, count_ = 0, stride_ = 1;  // a run; count_ 0: list_
  std::vector<int> list_;
};

/// "0 2 5"; a run of more than 8 ranks is "0..1023", or "0..1022/2" if not all between are members.
std::string to_text(const Members& members);

}  // namespace lockstep::program
