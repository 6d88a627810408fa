#include "train/start/run_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/index.h"
#include "comm/gather_texts.h"
#include "control/last_words.h"
#include "train/start/on_all_ranks.h"

namespace lockstep::train {
namespace {

/// How long a timeline is written if the watchdog ends the process: the launcher may not wait for longer, and
/// a disk that hangs must not keep the process alive.
constexpr std::chrono::milliseconds kTimelinePatience{500};

/// Rank 0 writes what all send: of many ranks, no more than of these.
constexpr double kRanksAtFullRate = 16;

}  // namespace

void RunWatch::record(const TimelineWish& wish, Worker& worker, run::StampRecorder& stamps,
                      observe::PhaseClock& phases) {
  if (wish.path.empty()) return;
  on_all_ranks(world_,
               [&] { timeline_.emplace(wish.path, world_.host(), worker, stamps, world_.communicator()); });
  const StepRange steps = steps_to_record(wish.steps, wish.done, wish.total);
  // Ranks have programs of different lengths.
  on_all_ranks(world_, [&] { timeline_->prepare(steps); });
  timeline_->begin(wish.done);
  phases.on_end = [this](observe::RunPhase phase, Clock::time_point begin, Clock::time_point end) {
    if (phase == observe::RunPhase::evaluation || phase == observe::RunPhase::checkpoints)
      timeline_->phase(observe::name_of(phase), begin, end);
  };
}

/// The first rank of each host samples the host.
observe::MachineIdentity RunWatch::identity() const {
  const auto& hosts = world_.hosts();
  const auto first = std::ranges::find(hosts, nth(hosts, world_.rank()));
  return {.host = host_name_,
          .rank = world_.rank(),
          .samples_host = first - hosts.begin() == static_cast<std::ptrdiff_t>(world_.rank())};
}

void RunWatch::sample(const MachineWishes& wishes, const Worker& worker, int64_t step,
                      std::function<void(observe::MetricsRecord)> write) {
  if (wishes.every_seconds <= 0) return;
  // Containers on several hosts may call themselves alike.
  const auto names = comm::gather_texts(world_.communicator(), world_.host(), comm::kPatience);
  host_name_ = world_.host();
  for (size_t rank = 0; rank < names.size(); ++rank)
    if (names[rank] == host_name_ && world_.hosts()[rank] != nth(world_.hosts(), world_.rank()))
      host_name_ = fmt::format("{}.{}", world_.host(), nth(world_.hosts(), world_.rank()));
  machine_.emplace(MachineWatchOptions{.every_seconds = wishes.every_seconds *
                                                        std::max(1.0, world_.size() / kRanksAtFullRate),
                                       .gpu_uuid = worker.gpu_uuid(),
                                       .is_told = wishes.has_sinks,
                                       .mailbox = &world_.control().mailbox(),
                                       .write = std::move(write)},
                   identity());
  machine_->set_step(step);
}

void RunWatch::after_step(int64_t step) {
  if (machine_) machine_->set_step(step);
  if (timeline_) timeline_->after_step(step);
}

void RunWatch::session_begins(int64_t done, int64_t last) {
  if (timeline_) timeline_->session_begins(done, last);
}

void RunWatch::session_ends(int64_t done) {
  if (timeline_) timeline_->session_ends(done);
}

void RunWatch::granted_step(const GrantedStep& step) {
  if (timeline_) timeline_->granted_step(step.iteration, step.asked, step.granted, step.ended);
}

void RunWatch::part() {
  if (timeline_) timeline_->part();
}

void RunWatch::follow(Worker& worker) {
  if (machine_) machine_->follow(identity());
  if (timeline_) timeline_->follow(worker, world_.communicator());
}

void RunWatch::finish() {
  if (machine_) machine_->stop();
  if (timeline_) timeline_->finish();
}

void RunWatch::abandon_machines() noexcept {
  if (machine_) machine_->abandon();
}

void RunWatch::abandon_timeline(const char* why) noexcept {
  if (timeline_) timeline_->abandon(why);
}

void RunWatch::abandon_timeline_soon(const char* why) noexcept {
  if (timeline_) control::run_at_most(kTimelinePatience, [this, why] { timeline_->abandon(why); });
}

std::vector<observe::MachineReport> RunWatch::machines() const {
  return machine_ ? machine_->reports() : std::vector<observe::MachineReport>{};
}

}  // namespace lockstep::train
