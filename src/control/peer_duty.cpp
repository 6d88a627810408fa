#include <algorithm>

#include "base/index.h"
#include "control/duty.h"
#include "control/failure_report.h"
#include "control/judge.h"

namespace lockstep::control {

bool prints_instead_of_root(int rank, const std::vector<RankState>& states) {
  const auto beside_root = [&](int r) { return nth(states, r).who.host == states[0].who.host; };
  for (int lower = 1; lower < rank; ++lower)
    if (!nth(states, lower).spared && beside_root(lower) == beside_root(rank)) return false;
  return rank != 0;
}

std::vector<int> Duty::to_end_with(int lost) const {
  const auto& states = roll_.known();
  const std::string& host = nth(states, lost).who.host;
  const auto first = std::ranges::find_if(
      states, [&](const RankState& state) { return !state.spared && state.who.host == host; });
  if (first - states.begin() != rank_) return {};
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank)
    if (nth(states, rank).spared && nth(states, rank).who.host == host) ranks.push_back(rank);
  return ranks;
}

PeerDuty::PeerDuty(int rank, std::vector<RankIdentity> ranks, const ControlTimings& timings,
                   Clock::time_point now)
    : Duty(rank, std::move(ranks), timings, now) {}

bool PeerDuty::heard(int from, const Frame& frame, Clock::time_point now) {
  switch (frame.type) {
    case FrameType::heartbeat: {
      const auto heartbeat = decode_heartbeat(frame.payload);
      if (heartbeat) roll_.told(from, *heartbeat, now);
      root_beat_ = heartbeat.has_value();
      return heartbeat.has_value();
    }
    case FrameType::ask:
      heartbeat_requested_ = true;
      return true;
    case FrameType::decision: {
      auto decision = decode_decision(frame.payload);
      const bool sensible = decision && decision->rank >= 0 && decision->rank < size_;
      // What another rank found of rank 0, passed on by rank 0 itself.
      if (sensible && prints() && decision->rank == 0 &&
          (decision->fault == Fault::silent || decision->fault == Fault::lost))
        decision->printed = decision->report;
      if (sensible && !received_) received_ = std::move(decision);
      return sensible;
    }
    case FrameType::loss:
    case FrameType::members: {
      auto ranks = decode_ranks(frame.payload);
      const bool sensible = ranks && !ranks->empty() &&
                            std::ranges::all_of(*ranks, [&](int rank) { return rank >= 0 && rank < size_; });
      if (sensible && frame.type == FrameType::loss) {
        const int lost = ranks->front();
        roll_.spared(lost, now);
        losses_.push_back({lost, "", to_end_with(lost)});
      }
      if (sensible && frame.type == FrameType::members) members_ = std::move(ranks);
      return sensible;
    }
    case FrameType::farewell:
      root_left_ = true;
      roll_.left(0);
      return true;
    default:
      return false;
  }
}

void PeerDuty::closed(int from, std::string_view reason, Clock::time_point now) {
  root_gone_ = true;
  if (!leaving_) roll_.closed(from, reason, now);
}

void PeerDuty::fail(const AbortNote& note, Clock::time_point) {
  failure_ = note;
  notes_.push_back({0, FrameType::abort, encode_abort(note)});
}

void PeerDuty::leave() {
  leaving_ = true;
  notes_.push_back({0, FrameType::farewell, ""});
}

std::optional<JobDecision> PeerDuty::decide(const WatchdogOptions& options, Clock::time_point now) {
  if (received_) return received_;
  const auto& states = roll_.states(now);
  if (!leaving_) {
    if (const auto finding = find_absent(std::span(states).first(1), options)) {
      const std::string report = failure_report(*finding, states, options);
      const JobDecision decision{finding->fault, 0, static_cast<int>(exit_code_of(finding->fault)), report,
                                 prints() ? report : ""};
      // A rank 0 that was stopped would otherwise wake up and take this rank for lost.
      notes_.push_back({0, FrameType::decision, encode_decision(decision)});
      return decision;
    }
  }
  // Nobody is left who would answer.
  if (failure_ && root_gone_)
    return JobDecision{Fault::failed, rank_, failure_->code,
                       abort_report(rank_, states, failure_->code, failure_->reason),
                       last_line(failure_->code, Fault::failed, rank_, nth(states, rank_).who.host)};
  if (terminated_at_ && now - *terminated_at_ >= timings_.decision) {
    const int code = static_cast<int>(ExitCode::terminated);
    if (!told_termination_)
      notes_.push_back({0, FrameType::abort, encode_abort({code, "was told to end (SIGTERM)"})});
    told_termination_ = true;
    if (root_gone_ || now - *terminated_at_ >= timings_.decision + timings_.fresh)
      return JobDecision{Fault::terminated, rank_, code, "was told to end (SIGTERM)\n", ""};
  }
  return {};
}

}  // namespace lockstep::control
