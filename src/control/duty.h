#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "control/control_protocol.h"
#include "control/judge.h"
#include "control/rank_state.h"
#include "control/roll_call.h"
#include "control/section_roll.h"
#include "control/timings.h"
#include "control/watchdog_options.h"

namespace lockstep::control {

/// The logic of a rank's watchdog: a state machine without threads, sockets or clocks. It is told every event
/// with its time, and answers with notes to other ranks and finally with a decision. Thread-safety: one
/// thread.
class Duty {
 public:
  struct Note {
    int to;
    FrameType type;
    std::string payload;
    bool operator==(const Note&) const = default;
  };

  virtual ~Duty() = default;

  void alive(int from, Clock::time_point now) { roll_.alive(from, now); }
  void observe(const Heartbeat& own, Clock::time_point now) { roll_.told(rank_, own, now); }
  /// This process was held up for `lost`, and could hear no rank.
  void forgive(Clock::duration lost) { roll_.forgive(lost); }
  /// A frame that is neither welcome nor mail; false if it makes no sense.
  virtual bool heard(int from, const Frame& frame, Clock::time_point now) = 0;
  virtual void closed(int from, std::string_view reason, Clock::time_point now) = 0;
  /// This rank has failed.
  virtual void fail(const AbortNote& note, Clock::time_point now) = 0;
  /// The launcher wants this process to end. Only the first call counts.
  void terminate(Clock::time_point now) {
    if (!terminated_at_) terminated_at_ = now;
  }
  /// It does not, or not any more.
  void go_on() { terminated_at_.reset(); }
  // Sections in which ranks may be lost (Muster): what this rank does.
  virtual void enter_section(const std::vector<bool>& expendable) = 0;
  virtual void leave_section() = 0;
  /// News of lost ranks since the last call.
  struct Loss {
    int rank;
    std::string report;       ///< to be printed; "" elsewhere than on rank 0
    std::vector<int> to_end;  ///< whose processes this one is to end: of its host, if it is the first left
  };
  std::vector<Loss> take_losses() { return std::exchange(losses_, {}); }
  std::optional<std::vector<int>> take_members() { return std::exchange(members_, {}); }
  /// This rank's work is done.
  virtual void leave() = 0;
  /// Whether all work is done, as far as this rank knows.
  virtual bool leaving() const { return leaving_; }

  /// Why and how the job ends, once that is known. What this is told while the decision is carried out
  /// changes nothing more: it is not asked again.
  virtual std::optional<JobDecision> decide(const WatchdogOptions& options, Clock::time_point now) = 0;

  std::vector<Note> take_notes() { return std::exchange(notes_, {}); }
  /// Whether other ranks want to know at once what this rank does.
  bool take_heartbeat_request() { return std::exchange(heartbeat_requested_, false); }
  /// Whether rank 0 has sent a heartbeat. Other ranks answer then, so that their heartbeats arrive together
  /// and wake rank 0 once.
  bool take_beat() { return std::exchange(root_beat_, false); }
  /// Whether decide() waits only for fractions of a second.
  virtual bool urgent() const { return terminated_at_.has_value(); }

 protected:
  Duty(int rank, std::vector<RankIdentity> ranks, const ControlTimings& timings, Clock::time_point now)
      : rank_(rank), size_(static_cast<int>(ranks.size())), timings_(timings), roll_(std::move(ranks), now) {}

  /// Loss::to_end, including all ranks that were spared before: the rank that had to end them may have been
  /// lost itself.
  std::vector<int> to_end_with(int lost) const;

  int rank_, size_;
  ControlTimings timings_;
  RollCall roll_;
  std::vector<Note> notes_;
  std::vector<Loss> losses_;
  std::optional<std::vector<int>> members_;
  bool heartbeat_requested_ = false;
  bool root_beat_ = false;
  bool leaving_ = false;
  std::optional<Clock::time_point> terminated_at_;
};

/// Rank 0 judges all ranks, prints, and sends the decision to all ranks.
class RootDuty : public Duty {
 public:
  RootDuty(std::vector<RankIdentity> ranks, const ControlTimings& timings, Clock::time_point now);

  bool heard(int from, const Frame& frame, Clock::time_point now) override;
  void closed(int from, std::string_view reason, Clock::time_point now) override;
  void fail(const AbortNote& note, Clock::time_point now) override { failed(0, note, now); }
  void enter_section(const std::vector<bool>& expendable) override;
  void leave_section() override { section_.leave(0); }
  void leave() override;
  std::optional<JobDecision> decide(const WatchdogOptions& options, Clock::time_point now) override;
  bool urgent() const override { return Duty::urgent() || asked_at_ || failure_; }

 private:
  struct Failure {
    int rank;
    AbortNote note;
    Clock::time_point at;
  };

  void failed(int rank, const AbortNote& note, Clock::time_point now);
  bool can_spare(const Finding& finding, const WatchdogOptions& options,
                 const std::vector<RankState>& states) const;
  void spare(const Finding& finding, const WatchdogOptions& options, const std::vector<RankState>& states,
             Clock::time_point now);
  void tell_all(FrameType type, const std::string& payload);
  bool fresh_enough(Clock::time_point now);
  JobDecision announce(JobDecision decision);

  SectionRoll section_;
  std::optional<Failure> failure_;             // the first one
  std::optional<JobDecision> condemned_;       // what others found of this rank while it could not know
  std::vector<bool> aborted_;                  // by rank: its connection may close
  std::optional<int> ended_by_launcher_;       // a rank that said so
  std::optional<Clock::time_point> asked_at_;  // the others, for what they do now, when a loss was seen
  std::vector<bool> answered_;                 // by rank. A heartbeat may have been on its way for long
};

/// Whether `rank` prints a report about rank 0. The lowest remaining rank on rank 0's host and the lowest one
/// on other hosts do so, because either host may be cut off.
bool prints_instead_of_root(int rank, const std::vector<RankState>& states);

/// Every other rank executes rank 0's decision, and judges only rank 0.
class PeerDuty : public Duty {
 public:
  PeerDuty(int rank, std::vector<RankIdentity> ranks, const ControlTimings& timings, Clock::time_point now);

  bool heard(int from, const Frame& frame, Clock::time_point now) override;
  void closed(int from, std::string_view reason, Clock::time_point now) override;
  void fail(const AbortNote& note, Clock::time_point now) override;
  void enter_section(const std::vector<bool>&) override { notes_.push_back({0, FrameType::enter, ""}); }
  void leave_section() override { notes_.push_back({0, FrameType::leave, ""}); }
  void leave() override;
  bool leaving() const override { return leaving_ || root_left_; }
  std::optional<JobDecision> decide(const WatchdogOptions& options, Clock::time_point now) override;

 private:
  bool prints() const { return prints_instead_of_root(rank_, roll_.known()); }

  std::optional<JobDecision> received_;
  std::optional<AbortNote> failure_;
  bool root_left_ = false;
  bool root_gone_ = false;
  bool told_termination_ = false;
};

}  // namespace lockstep::control
