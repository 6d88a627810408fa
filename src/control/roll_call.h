#pragma once

#include <string_view>
#include <vector>

#include "base/clock.h"
#include "control/rank_state.h"

namespace lockstep::control {

/// When each rank was last heard, and what it said. Time is passed in, so that tests choose it.
/// Thread-safety: one thread.
class RollCall {
 public:
  RollCall(std::vector<RankIdentity> ranks, Clock::time_point now);

  void alive(int rank, Clock::time_point now);  ///< something of it arrived
  void told(int rank, const Heartbeat& heartbeat, Clock::time_point now);
  void left(int rank);
  void spared(int rank);  ///< it was lost, and the job goes on without it
  void closed(int rank, std::string_view reason, Clock::time_point now);  ///< no loss where it has left
  /// This rank was held up for `lost` (its machine was suspended, its core starved, it was stopped), which
  /// may be why it heard nobody: that time does not count as silence. What came before does, since a rank
  /// that is held up again and again must find out all the same. How long others say that they have stood
  /// still is left as it is: they have taken off themselves what they were held up.
  void forgive(Clock::duration lost);

  /// But for times, which are those of the last call of states().
  const std::vector<RankState>& known() const { return states_; }
  /// What is known now. Valid until the next call.
  const std::vector<RankState>& states(Clock::time_point now);

 private:
  struct Times {
    Clock::time_point heard, lost;
  };

  std::vector<RankState> states_;
  std::vector<Times> times_;
};

}  // namespace lockstep::control
