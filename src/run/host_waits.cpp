#include "run/host_waits.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "lockstep/error.h"

namespace lockstep::run {
namespace {

/// Stands for "no deadline of its own".
constexpr std::chrono::hours kForever{24 * 365};

}  // namespace

HostWaits::HostWaits(const program::Program& program, const ExecutorOptions& options,
                     const std::vector<comm::Communicator*>& communicators, bool follows_lanes, Looks looks)
    : program_(program), options_(options), communicators_(communicators), looks_(std::move(looks)) {
  if (follows_lanes && options.progress != nullptr)
    positions_ = std::make_unique<LanePositions>(program, *options.progress, options.program_number);
}

void HostWaits::begin(bool goes_on) {
  if (positions_) positions_->begin(goes_on);
  issued_ = 0;
}

void HostWaits::hold(device::Stream& stream, const device::Event& event) {
  // Some devices get on only while they are asked whether they are idle.
  wait_for(stream, [&] { return event.ready() || stream.idle(); });
  hush();
}

void HostWaits::drain(device::Stream& stream) {
  wait_for(stream, [&] { return stream.idle(); });
}

double HostWaits::wait_for_peers(int index, device::Stream& stream, const std::function<bool()>& done) {
  if (done()) return 0;
  const auto began = Clock::now();
  report(control::Activity::waiting, index);
  for (const Deadline end = deadline(); !done(); std::this_thread::yield()) {
    stream.idle();  // a device that has failed tells who asks
    look_at_lanes();
    looks_.after_the_host();
    check_communicators();
    if (Clock::now() > end)
      throw CommError(fmt::format("rank {} has waited {:.1f} s for its peers; look at the other ranks' "
                                  "messages for the one that stopped",
                                  program_.rank, milliseconds_between(began, Clock::now()) / 1000),
                      ExitCode::hang);
  }
  hush();
  const double waited = milliseconds_between(began, Clock::now());
  report_issuing(index);
  return waited;
}

void HostWaits::wait_for(device::Stream& stream, const std::function<bool()>& done) {
  report(control::Activity::idle);
  bool lanes_tell = true;
  const Deadline end = deadline();
  while (!done()) {
    look_at_lanes();
    // The device has something to do, and no lane says what: it has not got there, or will not.
    if (options_.progress != nullptr && lanes_tell != any_lane_tells()) {
      lanes_tell = !lanes_tell;
      report(lanes_tell ? control::Activity::idle : control::Activity::compute,
             std::min(issued_, static_cast<int>(program_.instructions.size()) - 1));
    }
    looks_.after_the_host();
    check_communicators();
    if (Clock::now() > end)
      throw CommError(
          fmt::format("rank {} has waited {:.1f} s for lane {} of its {} program; look at the other ranks' "
                      "messages for the one that stopped",
                      program_.rank, std::chrono::duration<double>(*options_.communication_timeout).count(),
                      stream.name(), program_.name),
          ExitCode::hang);
    std::this_thread::yield();
  }
  report(control::Activity::idle);
}

void HostWaits::check_communicators() const {
  for (comm::Communicator* communicator : communicators_)
    if (communicator != nullptr) communicator->check_health();
}

void HostWaits::report(control::Activity activity, int instruction) const {
  if (options_.progress != nullptr)
    options_.progress->enter(control::Progress::kMainSlot, activity, options_.program_number, instruction);
}

void HostWaits::report_issuing(int index) const {
  const program::DeadlineClass deadline = program_.instruction(index).deadline;
  report(
      deadline == program::DeadlineClass::communication ? control::Activity::compute : activity_of(deadline),
      index);
}

void HostWaits::hush() {
  if (positions_) positions_->hush();
}

void HostWaits::look_at_lanes() {
  if (positions_) positions_->look(issued_, looks_.is_done, looks_.was_done);
}

bool HostWaits::any_lane_tells() const {
  for (size_t lane = 0; lane < program_.lanes.size(); ++lane)
    if (options_.progress->at(control::Progress::lane_slot(static_cast<int>(lane))).activity !=
        control::Activity::idle)
      return true;
  return false;
}

std::string HostWaits::under_way() {
  std::string where;
  try {
    look_at_lanes();
  } catch (const std::exception&) {
    // Of a device that has failed nothing is to be learnt; its error is told already.
  }
  if (options_.progress != nullptr)
    for (size_t lane = 0; lane < program_.lanes.size(); ++lane)
      if (const auto entry = options_.progress->at(control::Progress::lane_slot(static_cast<int>(lane)));
          entry.activity != control::Activity::idle)
        where +=
            fmt::format("{}{}", where.empty() ? "" : "; ", program::describe(program_, entry.instruction));
  return where;
}

Deadline HostWaits::deadline() const {
  return deadline_in(options_.communication_timeout.value_or(kForever));
}

}  // namespace lockstep::run
