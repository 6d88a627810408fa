#include "control/watchdog.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <system_error>

#include "base/index.h"
#include "base/thread.h"
#include "control/crash_file.h"
#include "control/failure_report.h"
#include "control/last_words.h"

namespace lockstep::control {
namespace {

using std::chrono::milliseconds;

/// Mail waits in its queue, not in a connection's buffer, beyond this: heartbeats and decisions must not
/// stand after it.
constexpr size_t kMailInBuffer = 2 << 20;
/// A heartbeat is left out while so much else is on its way, which is a sign of life itself.
constexpr size_t kHeartbeatInBuffer = 64 << 10;
constexpr size_t kLongestReason = 16 << 10;

std::unique_ptr<Duty> make_duty(int rank, const std::vector<RankIdentity>& ranks,
                                const ControlTimings& timings, Clock::time_point now) {
  if (rank == 0) return std::make_unique<RootDuty>(ranks, timings, now);
  return std::make_unique<PeerDuty>(rank, ranks, timings, now);
}

Descriptor make_wake() {
  const int descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor < 0)
    throw CommError(fmt::format("the watchdog cannot make an eventfd: {}", std::strerror(errno)));
  return Descriptor(descriptor);
}

}  // namespace

Clock::duration held_up(Clock::duration asked, Clock::duration took, const WatchdogOptions& options) {
  const auto tolerated =
      std::clamp<Clock::duration>(options.silent_after / 4, milliseconds(100), milliseconds(1000));
  return took - asked > tolerated ? took - asked : Clock::duration::zero();
}

Watchdog::Watchdog(int rank, std::vector<RankIdentity> ranks, std::vector<Connection> links,
                   const ControlPlaneOptions& options, const ControlTimings& timings)
    : rank_(rank),
      ranks_(std::move(ranks)),
      options_(options),
      timings_(timings),
      wake_(make_wake()),
      mailbox_(rank, static_cast<int>(ranks_.size()), [this] { wake(); }),
      desk_([this] { wake(); }),
      links_(std::move(links)),
      duty_(make_duty(rank, ranks_, timings, born_)),
      observer_(progress_, born_) {
  try {
    thread_ = start_thread_without_signals("watchdog", [this] { run(); });
  } catch (const std::system_error& error) {
    throw CommError(fmt::format("the watchdog's thread cannot start: {}", error.what()));
  }
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  wake();
  thread_.join();
}

void Watchdog::configure(const WatchdogOptions& options) {
  {
    std::lock_guard lock(mutex_);
    watch_options_ = options;
  }
  wake();
}

void Watchdog::set_describer(std::function<std::string(const Progress::Entry&)> describe) {
  std::lock_guard lock(describer_mutex_);
  describe_ = std::move(describe);
}

void Watchdog::set_crash_directory(const std::string& directory) {
  std::lock_guard lock(mutex_);
  crash_directory_ = directory;
}

void Watchdog::abort(ExitCode code, std::string_view reason) noexcept {
  try {
    std::unique_lock lock(mutex_);
    if (!aborted_) abort_ = {static_cast<int>(code), std::string(reason.substr(0, kLongestReason))};
    aborted_ = true;
    wake();
    changed_.wait_for(lock, timings_.acknowledge, [this] { return finished_; });
  } catch (const std::exception&) {
    // Without memory for a note, the closed connection tells the others.
  }
}

void Watchdog::leave() {
  {
    std::lock_guard lock(mutex_);
    leave_ = true;
  }
  wake();
}

void Watchdog::wake() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof(one));
}

void Watchdog::run() noexcept {
  try {
    watch();
  } catch (const std::exception& error) {
    say_last_words(
        {Fault::failed, rank_, static_cast<int>(ExitCode::internal), error.what(),
         fmt::format("lockstep: error: the watchdog of rank {} failed: {}\n", rank_, error.what())});
    end(static_cast<int>(ExitCode::internal));
  }
  for (auto& link : links_) link.close("the control plane has ended");
  for (size_t rank = 0; rank < links_.size(); ++rank) mailbox_.gone(static_cast<int>(rank));
}

milliseconds Watchdog::tick(const WatchdogOptions& options) const {
  if (duty_->urgent()) return milliseconds(10);
  return std::clamp(options.heartbeat_interval / 2, milliseconds(5), milliseconds(100));
}

void Watchdog::watch() {
  // Silence counts from there; this thread may have come to run much later.
  auto began = born_;
  milliseconds asked{0};
  for (;;) {
    const auto now = Clock::now();
    WatchdogOptions options;
    {
      std::lock_guard lock(mutex_);
      options = watch_options_;
    }
    const auto lost = held_up(asked, now - began, options);
    observer_.forgive(lost);
    duty_->forgive(lost);
    began = now;
    if (!take_requests(now)) return part();
    receive(now);
    look(options, now);
    const auto decision = duty_->decide(options, now);
    tell_of_section();
    if (decision) return carry_out(*decision);
    if (duty_->leaving() && !left_at_) left_at_ = now;
    if (left_at_ && now - *left_at_ >= timings_.leave) {
      const int code = static_cast<int>(ExitCode::hang);
      const auto& who = nth(ranks_, rank_);
      const std::string text = fmt::format(
          "lockstep: error: rank {} of {} on host {} (pid {}) has not ended {} s after its work was done\n{}",
          rank_, ranks_.size(), who.host, who.pid,
          std::chrono::duration_cast<std::chrono::seconds>(timings_.leave).count(),
          last_line(code, Fault::stuck, rank_, who.host));
      return carry_out({Fault::stuck, rank_, code, text, text});
    }
    send();
    asked = tick(options);
    wait(asked);
  }
}

bool Watchdog::take_requests(Clock::time_point now) {
  std::optional<AbortNote> note;
  bool leaves = false, stops = false;
  {
    std::lock_guard lock(mutex_);
    leaves = leave_ && !left_;
    left_ = leave_;
    note = std::exchange(abort_, {});
    stops = stop_;
  }
  for (const auto& request : desk_.take_requests())
    request ? duty_->enter_section(*request) : duty_->leave_section();
  if (leaves) duty_->leave();
  if (note) duty_->fail(*note, now);
  if (options_.termination_requested)
    options_.termination_requested() ? duty_->terminate(now) : duty_->go_on();
  return !stops;
}

bool Watchdog::heartbeat_due(const WatchdogOptions& options, Clock::time_point now) {
  const auto since = now - heartbeat_at_;
  if (rank_ == 0) return since >= options.heartbeat_interval;
  const bool beat = duty_->take_beat();
  return since >= options.heartbeat_interval * 3 / 2 || (beat && since >= options.heartbeat_interval / 2);
}

void Watchdog::look(const WatchdogOptions& options, Clock::time_point now) {
  const bool requested = duty_->take_heartbeat_request();
  const bool due = heartbeat_due(options, now);
  if (!requested && !due && now - looked_at_ < tick(options)) return;
  looked_at_ = now;
  observer_.look(now);
  // Texts are needed where they are sent or judged; elsewhere looking is enough.
  if (!requested && !due && rank_ != 0) return;
  const Heartbeat heartbeat = own_heartbeat(now);
  duty_->observe(heartbeat, now);
  if (!requested && !due) return;
  heartbeat_at_ = now;
  const std::string payload = encode_heartbeat(heartbeat);
  const FrameType type = requested && rank_ != 0 ? FrameType::answer : FrameType::heartbeat;
  for (auto& link : links_)
    if (requested || link.unsent_bytes() < kHeartbeatInBuffer) link.send(type, payload);
}

Heartbeat Watchdog::own_heartbeat(Clock::time_point now) {
  std::lock_guard lock(describer_mutex_);
  return observer_.heartbeat(describe_, now);
}

void Watchdog::receive(Clock::time_point now) {
  for (size_t i = 0; i < polled_ranks_.size(); ++i) {
    if (polled_[i + 1].revents == 0) continue;
    const int from = polled_ranks_[i];
    auto& link = nth(links_, from);
    if (!link.open()) continue;
    if (link.receive()) duty_->alive(from, now);
    while (const auto frame = link.next()) handle(from, *frame, now);
    if (link.open()) continue;
    mailbox_.gone(from);
    // The report names the step that this rank is in now, not at its last heartbeat.
    observer_.look(now);
    duty_->observe(own_heartbeat(now), now);
    duty_->closed(from, link.reason(), now);
  }
}

void Watchdog::handle(int from, const Frame& frame, Clock::time_point now) {
  auto& link = nth(links_, from);
  bool sensible;
  if (frame.type == FrameType::mail) {
    auto mail = decode_mail(frame.payload);
    sensible = mail.has_value();
    if (mail) mailbox_.deliver({from, std::move(mail->text)}, mail->topic);
  } else {
    sensible = duty_->heard(from, frame, now);
  }
  if (!sensible) link.close("it sent a malformed message, so its connection was closed");
}

void Watchdog::send() {
  for (auto& note : duty_->take_notes()) nth(links_, note.to).send(note.type, note.payload);
  for (size_t to = 0; mailbox_.any() && to < links_.size(); ++to) {
    auto& link = links_[to];
    while (link.open() && link.unsent_bytes() < kMailInBuffer) {
      const auto mail = mailbox_.take(static_cast<int>(to));
      if (!mail) break;
      link.send(FrameType::mail, *mail);
    }
  }
  flush();
}

void Watchdog::tell_of_section() {
  std::string reports;
  for (const auto& loss : duty_->take_losses()) {
    for (const int rank : loss.to_end)
      if (options_.end_lost) options_.end_lost(rank, nth(ranks_, rank).pid);
    desk_.tell_loss(loss.rank);
    reports += loss.report;
  }
  if (!reports.empty()) {
    send();  // a terminal may take its time
    const auto print = options_.print ? options_.print : print_to_stderr;
    run_at_most(timings_.last_words, [print, reports] { print(reports); });
  }
  if (auto left = duty_->take_members()) desk_.tell_members(std::move(*left));
}

void Watchdog::flush() {
  for (auto& link : links_) link.flush();
}

void Watchdog::wait(milliseconds limit) {
  polled_.assign(1, {wake_.get(), POLLIN, 0});
  polled_ranks_.clear();
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    if (!links_[rank].open()) continue;
    const bool writes = links_[rank].unsent_bytes() > 0;
    polled_.push_back({links_[rank].descriptor(), static_cast<short>(writes ? POLLIN | POLLOUT : POLLIN), 0});
    polled_ranks_.push_back(static_cast<int>(rank));
  }
  if (::poll(polled_.data(), polled_.size(), static_cast<int>(limit.count())) <= 0)
    for (auto& each : polled_) each.revents = 0;
  uint64_t wakes;
  if (polled_[0].revents != 0) [[maybe_unused]]
    const auto count = ::read(wake_.get(), &wakes, sizeof(wakes));
}

bool Watchdog::any_link() const {
  return std::any_of(links_.begin(), links_.end(), [](const Connection& link) { return link.open(); });
}

/// Sends what is left and reads on, since closing with unread bytes would take back what was sent.
void Watchdog::await_closings(milliseconds limit) {
  const auto deadline = deadline_in(limit);
  while (any_link() && Clock::now() < deadline) {
    for (auto& link : links_) {
      link.flush();
      if (link.unsent_bytes() == 0) link.shut_down();
    }
    wait(milliseconds(10));
    receive(Clock::now());
  }
}

void Watchdog::say_last_words(const JobDecision& decision) {
  observer_.look(Clock::now());
  CrashRecord record{rank_, nth(ranks_, rank_), decision, own_heartbeat(Clock::now())};
  std::string directory;
  {
    std::lock_guard lock(mutex_);
    // Nothing has failed if a launcher ends the job.
    if (decision.fault != Fault::terminated) directory = crash_directory_;
  }
  const auto print = options_.print ? options_.print : print_to_stderr;
  run_at_most(timings_.last_words, [print, directory, record] {
    if (!record.decision.printed.empty()) print(record.decision.printed);
    write_crash_file(directory, record);
  });
}

void Watchdog::carry_out(const JobDecision& decision) {
  send();
  say_last_words(decision);
  if (rank_ == 0) await_closings(timings_.closing);
  for (auto& link : links_) link.close("the job has ended");
  let_be_reaped(decision);
  end(decision.code);
}

/// A launcher names, and returns the code of, the process whose end it sees first: that shall be the lost
/// one, whose connections the system closes a moment before its end can be seen. And it wakes a rank 0 that
/// was stopped as soon as one rank ends: not before those who print have found it, too.
void Watchdog::let_be_reaped(const JobDecision& decision) {
  const bool others_print = decision.rank == 0 && decision.printed.empty();
  if (decision.rank == rank_ ||
      !(decision.fault == Fault::lost || (decision.fault == Fault::silent && others_print)))
    return;
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timings_.reaping, [this] { return stop_; });
}

void Watchdog::end(int code) {
  bool left_to_caller;
  {
    std::unique_lock lock(mutex_);
    finished_ = true;
    left_to_caller = aborted_;
    changed_.notify_all();
    // Whoever called abort() ends the process, unless even that hangs.
    if (left_to_caller && changed_.wait_for(lock, timings_.leave, [this] { return stop_; })) return;
  }
  if (options_.end_process) {
    options_.end_process(code);
  } else {
    ::_exit(code);
  }
}

void Watchdog::part() {
  send();
  if (!left_) return;
  // Rank 0 stays until all have said farewell, so that nobody is taken for lost; the others need not wait for
  // it, but give their farewell time to arrive.
  await_closings(rank_ == 0 ? timings_.parting : timings_.closing);
}

}  // namespace lockstep::control
