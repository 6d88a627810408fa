#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/index.h"

namespace lockstep::run {

/// Staleness of all applied pushes: updates between a worker's read of parameters and the application of its
/// push.
struct Staleness {
  static constexpr int64_t kCap = 31;

  std::array<int64_t, kCap + 1> pushes{};  ///< by staleness; the last one: or more
  int64_t count = 0;
  int64_t sum = 0;
  int64_t max = 0;

  double mean() const { return count > 0 ? static_cast<double>(sum) / static_cast<double>(count) : 0; }
  void add(const Staleness& others) {
    for (size_t i = 0; i < pushes.size(); ++i) pushes[i] += others.pushes[i];
    count += others.count;
    sum += others.sum;
    max = std::max(max, others.max);
  }
  void add(int64_t staleness, int64_t times = 1) {
    nth(pushes, std::min(staleness, kCap)) += times;
    count += times;
    sum += staleness * times;
    max = std::max(max, staleness);
  }
};

}  // namespace lockstep::run
