#pragma once

#include <chrono>

#include "base/clock.h"

namespace lockstep::run {

/// The longest sleep of a rank that waits for most of a step, such as a server, and that may share its cores
/// with ranks that compute. One poll takes about 50 us: 1 % of this.
inline constexpr std::chrono::microseconds kLongestNap{5000};

/// What a thread does between two polls: it yields the core or, if it has waited for a while, sleeps for a
/// part of that time. After long waits it stays awake for less.
class Patience {
 public:
  /// 0: it never sleeps.
  explicit Patience(std::chrono::microseconds longest_nap);
  /// A wait begins.
  void begin();
  /// Since then.
  Clock::duration waited() const { return Clock::now() - began_; }
  void rest();

 private:
  std::chrono::microseconds longest_nap_;
  Clock::time_point began_ = Clock::now();
  Clock::duration awake_, last_{};  // for so long it does not sleep; of this wait when it last rested
};

}  // namespace lockstep::run
