#include <fmt/format.h>

#include <algorithm>

#include "base/index.h"
#include "control/duty.h"
#include "control/failure_report.h"
#include "control/judge.h"

namespace lockstep::control {
namespace {

/// A rank that says so probably met what another rank's end has caused.
bool is_consequence(int code) {
  return code == static_cast<int>(ExitCode::peer_lost) || code == static_cast<int>(ExitCode::hang);
}

constexpr int kTerminated = static_cast<int>(ExitCode::terminated);

}  // namespace

RootDuty::RootDuty(std::vector<RankIdentity> ranks, const ControlTimings& timings, Clock::time_point now)
    : Duty(0, ranks, timings, now),
      section_(size_),
      aborted_(ranks.size(), false),
      answered_(ranks.size(), false) {}

bool RootDuty::heard(int from, const Frame& frame, Clock::time_point now) {
  if (nth(roll_.known(), from).spared) return true;  // whatever it still says, the job goes on without it
  if (frame.type == FrameType::heartbeat || frame.type == FrameType::answer) {
    const auto heartbeat = decode_heartbeat(frame.payload);
    if (frame.type == FrameType::answer) nth(answered_, from) = true;
    if (heartbeat) roll_.told(from, *heartbeat, now);
    return heartbeat.has_value();
  }
  if (frame.type == FrameType::abort) {
    const auto note = decode_abort(frame.payload);
    if (!note) return false;
    nth(aborted_, from) = true;
    if (note->code == kTerminated) {
      if (!ended_by_launcher_) ended_by_launcher_ = from;
    } else {
      failed(from, *note, now);
    }
    return true;
  }
  if (frame.type == FrameType::enter || frame.type == FrameType::leave) {
    frame.type == FrameType::enter ? section_.enter(from) : section_.leave(from);
    return true;
  }
  if (frame.type == FrameType::farewell) {
    roll_.left(from);
    return true;
  }
  if (frame.type == FrameType::decision) {
    auto decision = decode_decision(frame.payload);
    const bool sensible = decision && decision->rank == 0 &&
                          (decision->fault == Fault::silent || decision->fault == Fault::lost);
    if (sensible && !condemned_) condemned_ = std::move(decision);
    return sensible;
  }
  return false;
}

void RootDuty::closed(int from, std::string_view reason, Clock::time_point now) {
  if (!nth(aborted_, from)) roll_.closed(from, reason, now);
}

void RootDuty::failed(int rank, const AbortNote& note, Clock::time_point now) {
  if (!failure_) failure_ = {rank, note, now};
}

void RootDuty::enter_section(const std::vector<bool>& expendable) {
  section_.expect(expendable);
  section_.enter(0);
}

/// Whether the job can go on without the rank that is to blame.
bool RootDuty::can_spare(const Finding& finding, const WatchdogOptions& options,
                         const std::vector<RankState>& states) const {
  if (!section_.can_spare(finding.rank)) return false;
  if (finding.fault == Fault::lost || finding.fault == Fault::stuck) return true;
  // Where a host is silent as a whole, the launcher loses it, too, and ends the job.
  return finding.fault == Fault::silent && std::ranges::any_of(states, [&](const RankState& other) {
           return other.who.host == nth(states, finding.rank).who.host && !other.left && !other.lost &&
                  !is_late(other, options);
         });
}

void RootDuty::spare(const Finding& finding, const WatchdogOptions& options,
                     const std::vector<RankState>& states, Clock::time_point now) {
  const int rank = finding.rank;
  const std::string report = loss_report(finding, states, options);
  section_.lose(rank);
  if (finding.fault != Fault::lost)
    notes_.push_back(
        {rank, FrameType::decision,
         encode_decision({finding.fault, rank, static_cast<int>(exit_code_of(finding.fault)), report, ""})});
  roll_.spared(rank, now);
  tell_all(FrameType::loss, encode_ranks({rank}));
  losses_.push_back({rank, report, to_end_with(rank)});
  // The others were asked in vain.
  asked_at_.reset();
  answered_.assign(answered_.size(), false);
}

void RootDuty::tell_all(FrameType type, const std::string& payload) {
  for (int rank = 1; rank < size_; ++rank) notes_.push_back({rank, type, payload});
}

void RootDuty::leave() {
  leaving_ = true;
  tell_all(FrameType::farewell, "");
}

bool RootDuty::fresh_enough(Clock::time_point now) {
  const auto& states = roll_.states(now);
  if (!asked_at_) {
    asked_at_ = now;
    for (int rank = 1; rank < size_; ++rank)
      if (!nth(states, rank).lost && !nth(states, rank).left) notes_.push_back({rank, FrameType::ask, ""});
    // This rank's own line shall be as fresh.
    heartbeat_requested_ = true;
    return false;
  }
  if (now - *asked_at_ >= timings_.fresh) return true;
  for (int rank = 1; rank < size_; ++rank) {
    const auto& state = nth(states, rank);
    if (!state.lost && !state.left && !nth(aborted_, rank) && !nth(answered_, rank)) return false;
  }
  return true;
}

JobDecision RootDuty::announce(JobDecision decision) {
  tell_all(FrameType::decision, encode_decision(decision));
  return decision;
}

std::optional<JobDecision> RootDuty::decide(const WatchdogOptions& options, Clock::time_point now) {
  // It was stopped, and the others have left: their closed connections are no losses. They print it.
  if (condemned_) return announce(*condemned_);
  const auto& states = roll_.states(now);
  const auto failed_decision = [&] {
    const auto& [rank, note, at] = *failure_;
    return announce({Fault::failed, rank, note.code, abort_report(rank, states, note.code, note.reason),
                     last_line(note.code, Fault::failed, rank, nth(states, rank).who.host)});
  };
  if (failure_ && !is_consequence(failure_->note.code) && !asked_at_) return failed_decision();

  auto finding = leaving_ ? std::nullopt : judge(states, options);
  while (finding && can_spare(*finding, options, states)) {
    spare(*finding, options, states, now);
    finding = judge(roll_.states(now), options);
  }
  if (auto left = section_.conclude()) {
    tell_all(FrameType::members, encode_ranks(*left));
    members_ = std::move(left);
  }
  if (finding && finding->fault == Fault::lost && !fresh_enough(now)) return {};
  if (!finding && failure_ && now - failure_->at >= timings_.fresh) return failed_decision();
  if (finding) {
    const std::string report = failure_report(*finding, states, options);
    return announce(
        {finding->fault, finding->rank, static_cast<int>(exit_code_of(finding->fault)), report, report});
  }
  if (ended_by_launcher_ || (terminated_at_ && now - *terminated_at_ >= timings_.decision)) {
    const std::string text =
        "lockstep: was told to end (SIGTERM); nothing was saved; use SIGUSR1 or lockstep-run to stop with a "
        "checkpoint\n";
    return announce({Fault::terminated, ended_by_launcher_.value_or(0), kTerminated, text, text});
  }
  return {};
}

}  // namespace lockstep::control
