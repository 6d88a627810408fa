#pragma once

#include <string_view>
#include <vector>

#include "base/clock.h"
#include "control/rank_state.h"

namespace lockstep::control {

/// When each rank was last heard, and what it said. Time is a parameter, so that tests can choose it.
/// Thread-safety: one thread.
class RollCall {
 public:
  RollCall(std::vector<RankIdentity> ranks, Clock::time_point now);

  void alive(int rank, Clock::time_point now);  ///< something of it arrived
  void told(int rank, const Heartbeat& heartbeat, Clock::time_point now);
  void left(int rank);
  void spared(int rank, Clock::time_point now);  ///< it was lost, and the job continues without it
  void closed(int rank, std::string_view reason, Clock::time_point now);  ///< no loss if it has left
  /// This rank was held up for `lost` (its machine was suspended, its core starved, it was stopped), which
  /// may be why it heard no rank. So this time does not count as silence. Earlier time does, because a rank
  /// that is held up repeatedly must still detect silence. Other ranks' times without progress are not
  /// changed: they have already subtracted their own delays.
  void forgive(Clock::duration lost);

  /// What is known; times are those of the last call of states().
  const std::vector<RankState>& known() const { return states_; }
  /// What is known now. Valid until the next call.
  const std::vector<RankState>& states(Clock::time_point now);

 private:
  struct Times {
    Clock::time_point heard, lost, spared;
  };

  std::vector<RankState> states_;
  std::vector<Times> times_;
};

}  // namespace lockstep::control
