#include "run/timed_stands.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/index.h"
#include "run/exposed_time.h"

namespace lockstep::run {
namespace {

program::LaneKind lane_kind(const program::Program& program, int instruction) {
  return program.lane(program.instruction(instruction).lane).kind;
}

}  // namespace

// Where there is one compute lane, it alone tells what is exposed. Of several, one may work while another
// waits.
TimedStands::TimedStands(const program::Program& program, const std::vector<int>& reports,
                         device::Device& device)
    : program_(program), reports_(reports), next_(stands_[0].end()) {
  for (size_t lane = 0; lane < program.lanes.size(); ++lane)
    if (program.lanes[lane].kind == program::LaneKind::compute) compute_lanes_.push_back(lane);
  const bool alone = compute_lanes_.size() == 1;
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    const auto& after = program.instructions[i].after;
    if (lane_kind(program, static_cast<int>(i)) != program::LaneKind::compute) continue;
    for (const bool for_communication : {false, true})
      if ((for_communication || !alone) &&
          std::any_of(after.begin(), after.end(),
                      [&](const program::Dependency& d) { return is_communication(d) == for_communication; }))
        for (auto& stands : stands_)
          stands.push_back(
              {static_cast<int>(i), for_communication, device.create_event(true), device.create_event(true)});
  }
  if (alone) return;
  for (auto& ends : ends_)
    for (size_t lane = 0; lane < compute_lanes_.size(); ++lane) ends.push_back(device.create_event(true));
}

bool TimedStands::is_communication(const program::Dependency& dependency) const {
  const bool over = dependency.distance > 0 &&
                    std::find(reports_.begin(), reports_.end(), dependency.instruction) != reports_.end();
  return lane_kind(program_, dependency.instruction) == program::LaneKind::comm && !over;
}

void TimedStands::begin(int place) { next_ = nth(stands_, place).begin(); }

void TimedStands::before_waits(int place, int instruction, bool for_communication, device::Stream& stream) {
  if (next_ == nth(stands_, place).end() || next_->instruction != instruction ||
      next_->for_communication != for_communication)
    return;
  standing_ = &*next_++;
  stream.record(*standing_->begin);
}

void TimedStands::after_waits(device::Stream& stream) {
  if (const Stand* stand = std::exchange(standing_, nullptr)) stream.record(*stand->end);
}

void TimedStands::end(int place, const std::vector<std::unique_ptr<device::Stream>>& streams) {
  const auto& ends = nth(ends_, place);
  for (size_t i = 0; i < ends.size(); ++i) streams[compute_lanes_[i]]->record(*ends[i]);
}

bool TimedStands::ready(int place) const {
  const auto& ends = nth(ends_, place);
  return std::all_of(ends.begin(), ends.end(), [](const auto& end) { return end->ready(); });
}

void TimedStands::synchronize(int place) {
  for (const auto& end : nth(ends_, place)) end->synchronize();
}

double TimedStands::exposed_communication_ms(int place) const {
  std::vector<run::Stand> stands;
  const auto& timed = nth(stands_, place);
  const auto at = [&](const device::Event& event) { return event.milliseconds_since(*timed.front().begin); };
  for (const auto& stand : timed)
    stands.push_back({at(*stand.begin), at(*stand.end), stand.for_communication});
  if (!stands.empty())
    for (const auto& end : nth(ends_, place))
      stands.push_back({at(*end), std::numeric_limits<double>::infinity(), false});
  return run::exposed_communication_ms(stands, static_cast<int>(compute_lanes_.size()));
}

}  // namespace lockstep::run
