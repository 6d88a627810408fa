#include "control/roll_call.h"

#include "base/index.h"

namespace lockstep::control {
namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

RollCall::RollCall(std::vector<RankIdentity> ranks, Clock::time_point now)
    : states_(ranks.size()), times_(ranks.size(), {now, now, now}) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) states_[rank].who = std::move(ranks[rank]);
}

void RollCall::alive(int rank, Clock::time_point now) { nth(times_, rank).heard = now; }

void RollCall::told(int rank, const Heartbeat& heartbeat, Clock::time_point now) {
  auto& state = nth(states_, rank);
  state.told = true;
  state.last = heartbeat;
  nth(times_, rank).heard = now;
}

void RollCall::left(int rank) { nth(states_, rank).left = true; }

void RollCall::spared(int rank, Clock::time_point now) {
  nth(states_, rank).left = true;
  nth(states_, rank).spared = true;
  nth(times_, rank).spared = now;
}

void RollCall::closed(int rank, std::string_view reason, Clock::time_point now) {
  auto& state = nth(states_, rank);
  if (state.left || state.lost) return;
  state.lost = true;
  state.lost_reason = reason;
  nth(times_, rank).lost = now;
}

void RollCall::forgive(Clock::duration lost) {
  for (auto& times : times_) {
    times.heard += lost;
    times.spared += lost;
  }
}

const std::vector<RankState>& RollCall::states(Clock::time_point now) {
  for (size_t rank = 0; rank < states_.size(); ++rank) {
    states_[rank].heard_seconds = seconds_between(times_[rank].heard, now);
    states_[rank].lost_seconds = states_[rank].lost ? seconds_between(times_[rank].lost, now) : 0;
    states_[rank].spared_seconds = states_[rank].spared ? seconds_between(times_[rank].spared, now) : 0;
  }
  return states_;
}

}  // namespace lockstep::control
