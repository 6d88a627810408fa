#include "program/memory/interval_packing.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace lockstep::program {

int64_t pack_intervals(std::span<Interval> intervals) {
  constexpr int64_t kAlignment = 64;
  const auto rounded = [](int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].size_bytes > intervals[b].size_bytes; });
  std::vector<size_t> placed;  // sorted by offset
  int64_t total = 0;
  for (const size_t i : order) {
    auto& item = intervals[i];
    item.offset = 0;
    if (item.size_bytes == 0) continue;
    for (const size_t p : placed) {
      const auto& other = intervals[p];
      if (other.last < item.first || item.last < other.first) continue;
      if (other.offset >= item.offset + item.size_bytes) break;  // fits into the gap before `other`
      item.offset = std::max(item.offset, rounded(other.offset + other.size_bytes));
    }
    placed.insert(std::upper_bound(placed.begin(), placed.end(), item.offset,
                                   [&](int64_t offset, size_t p) { return offset < intervals[p].offset; }),
                  i);
    total = std::max(total, rounded(item.offset + item.size_bytes));
  }
  return total;
}

}  // namespace lockstep::program
