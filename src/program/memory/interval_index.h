#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace lockstep::program {

/// Finds the intervals, all closed, that meet another one. All intervals are known from the start, but
/// queries find only those that have been entered. Entering takes O(log n); a query that finds k intervals
/// takes O((k + 1) log n). As thread-safe as a standard container.
class IntervalIndex {
 public:
  struct Item {
    int id;           ///< below `ids`; at most one item each
    int first, last;  ///< at least 0
  };

  IntervalIndex(size_t ids, std::span<const Item> items);

  /// REQUIRES: there is an item of that id.
  void enter(int id);

  /// Calls visit(id) for every entered interval that shares a point with [first, last], in no particular
  /// order.
  template <class Visit>
  void visit(int first, int last, Visit&& visit) const {
    if (items_.empty() || first > last) return;
    // Those that begin in time stand in front; among them the tree finds those that end late enough.
    const auto candidates = std::upper_bound(items_.begin(), items_.end(), last,
                                             [](int at, const Item& item) { return at < item.first; });
    descend(1, 0, leaves_, static_cast<size_t>(candidates - items_.begin()), first, visit);
  }

 private:
  template <class Visit>
  void descend(size_t node, size_t begin, size_t width, size_t candidates, int first, Visit& visit) const {
    if (begin >= candidates || latest_[node] < first) return;
    if (width == 1) {
      visit(items_[begin].id);
      return;
    }
    descend(2 * node, begin, width / 2, candidates, first, visit);
    descend(2 * node + 1, begin + width / 2, width / 2, candidates, first, visit);
  }

  std::vector<Item> items_;      ///< by their first point
  std::vector<size_t> leaf_of_;  ///< by id
  size_t leaves_ = 1;            ///< a power of two
  std::vector<int> latest_;      ///< binary tree in an array, from 1: last points of entered items, or -1
};

}  // namespace lockstep::program
