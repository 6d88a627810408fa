#include "program/memory/interval_index.h"

#include <bit>

#include "base/index.h"

namespace lockstep::program {

IntervalIndex::IntervalIndex(size_t ids, std::span<const Item> items)
    : items_(items.begin(), items.end()),
      leaf_of_(ids),
      leaves_(std::bit_ceil(std::max<size_t>(items.size(), 1))) {
  std::stable_sort(items_.begin(), items_.end(),
                   [](const Item& a, const Item& b) { return a.first < b.first; });
  for (size_t i = 0; i < items_.size(); ++i) nth(leaf_of_, items_[i].id) = i;
  latest_.assign(2 * leaves_, -1);
}

void IntervalIndex::enter(int id) {
  const size_t leaf = nth(leaf_of_, id);
  const int last = items_[leaf].last;
  for (size_t node = leaves_ + leaf; node >= 1; node /= 2) latest_[node] = std::max(latest_[node], last);
}

}  // namespace lockstep::program
