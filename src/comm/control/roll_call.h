#pragma once

#include <string_view>
#include <vector>

#include "base/clock.h"
#include "comm/control/rank_state.h"

namespace lockstep {

/// When each rank was last heard, and what it said. Time is passed in, so that tests choose it.
/// Thread-safety: one thread.
class RollCall {
 public:
  RollCall(std::vector<RankIdentity> ranks, Clock::time_point now);

  void alive(int rank, Clock::time_point now);  ///< something of it arrived
  void told(int rank, const Heartbeat& heartbeat, Clock::time_point now);
  void left(int rank);
  void closed(int rank, std::string_view reason, Clock::time_point now);  ///< no loss where it has left
  /// This rank was held up (its machine was suspended, its core starved, it was stopped): what it takes for
  /// the silence of others may be its own. Everybody's time counts from here.
  void fresh_start(Clock::time_point now);

  /// What is known now. Valid until the next call.
  const std::vector<RankState>& states(Clock::time_point now);

 private:
  struct Times {
    Clock::time_point heard, lost;
  };

  std::vector<RankState> states_;
  std::vector<Times> times_;
  Clock::time_point fresh_;
};

}  // namespace lockstep
