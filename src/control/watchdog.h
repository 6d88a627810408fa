#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "control/connection.h"
#include "control/control_plane.h"
#include "control/duty.h"
#include "control/progress_observer.h"
#include "control/section_desk.h"
#include "control/star_mailbox.h"
#include "control/timings.h"

struct pollfd;

namespace lockstep::control {

/// How long a loop that wanted to sleep for `asked`, and woke after `took`, could not run: because it was
/// stopped or starved, or its machine suspended. Zero for normal delays of a scheduler, which are far below
/// the limit of silence.
Clock::duration held_up(Clock::duration asked, Clock::duration took, const WatchdogOptions& options);

/// The control plane of one rank once all are connected: a thread that alone uses the sockets, passes events
/// to the duty, and executes its decision. It never calls MPI.
class Watchdog : public ControlPlane {
 public:
  /// `links` by rank: all others on rank 0, rank 0 elsewhere; the rest closed.
  Watchdog(int rank, std::vector<RankIdentity> ranks, std::vector<Connection> links,
           const ControlPlaneOptions& options, const ControlTimings& timings);
  ~Watchdog() override;

  Progress& progress() override { return progress_; }
  Mailbox& mailbox() override { return mailbox_; }
  Muster& muster() override { return desk_; }
  void configure(const WatchdogOptions& options) override;
  void set_describer(std::function<std::string(const Progress::Entry&)> describe) override;
  void set_crash_directory(const std::string& directory) override;
  void abort(ExitCode code, std::string_view reason) noexcept override;
  void leave() override;

 private:
  void wake() noexcept;
  void run() noexcept;
  void watch();
  bool take_requests(Clock::time_point now);
  bool heartbeat_due(const WatchdogOptions& options, Clock::time_point now);
  void look(const WatchdogOptions& options, Clock::time_point now);
  Heartbeat own_heartbeat(Clock::time_point now);
  void receive(Clock::time_point now);
  void handle(int from, const Frame& frame, Clock::time_point now);
  void send();
  void flush();
  void tell_of_section();
  void wait(std::chrono::milliseconds limit);
  void carry_out(const JobDecision& decision);
  void end(int code);
  void say_last_words(const JobDecision& decision);
  void let_be_reaped(const JobDecision& decision);
  void await_closings(std::chrono::milliseconds limit);
  void part();
  std::chrono::milliseconds tick(const WatchdogOptions& options) const;
  bool any_link() const;

  const int rank_;
  const std::vector<RankIdentity> ranks_;
  const ControlPlaneOptions options_;
  const ControlTimings timings_;
  const Clock::time_point born_ = Clock::now();
  Progress progress_;
  Descriptor wake_;  // an eventfd
  StarMailbox mailbox_;
  SectionDesk desk_;

  // The thread's own:
  std::vector<Connection> links_;
  std::unique_ptr<Duty> duty_;
  ProgressObserver observer_;
  std::vector<pollfd> polled_;
  std::vector<int> polled_ranks_;  // of polled_[1 + i]
  Clock::time_point heartbeat_at_, looked_at_;
  std::optional<Clock::time_point> left_at_;

  std::mutex describer_mutex_;  // guards describe_, also while it is called: whoever replaces it may then let
                                // go of what it saw
  std::function<std::string(const Progress::Entry&)> describe_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  WatchdogOptions watch_options_;
  std::string crash_directory_;
  std::optional<AbortNote> abort_;  // not yet told to duty_
  bool aborted_ = false;            // abort() was called: its caller ends the process
  bool leave_ = false, left_ = false;
  bool stop_ = false;
  bool finished_ = false;  // a decision was carried out
  std::thread thread_;
};

}  // namespace lockstep::control
