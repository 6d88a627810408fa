#include "program/lane_schedule.h"

#include <algorithm>

#include "base/ensure.h"
#include "program/lane_overlap.h"

namespace lockstep::program {

std::vector<std::vector<int>> instructions_by_lane(const Program& program) {
  std::vector<std::vector<int>> lanes(program.lanes.size());
  for (int i = 0; i < std::ssize(program.instructions); ++i)
    nth(lanes, program.instruction(i).lane).push_back(i);
  return lanes;
}

LaneSchedule::LaneSchedule(const Program& program, const StartRules& rules)
    : program_(program),
      places_(program.instructions.size()),
      independent_(rules.overlaps_exchanges ? independent_predecessors(program)
                                            : std::vector<int>(program.instructions.size())),
      has_turn_(program.instructions.size()),
      reports_(program.instructions.size()) {
  for (auto& instructions : instructions_by_lane(program)) {
    for (int place = 0; place < std::ssize(instructions); ++place)
      nth(places_, nth(instructions, place)) = place;
    lanes_.push_back({.instructions = std::move(instructions)});
  }
  for (int i = 0; i < std::ssize(program.instructions) && rules.communicates_in_order; ++i) {
    const InstructionKind kind = program.instruction(i).kind;
    nth(has_turn_, i) = communicates(kind) && kind != InstructionKind::push && kind != InstructionKind::pull;
    if (nth(has_turn_, i)) issue_order_.push_back(i);
  }
  for (const int i : report_instructions(program)) nth(reports_, i) = true, ++reports_each_;
}

void LaneSchedule::begin() {
  ensure(nth(left_, begun_ % 2) == 0, "an iteration begins when the one before the last is complete");
  nth(left_, begun_ % 2) = std::ssize(program_.instructions);
  reports_left_ = reports_each_;
  ++begun_;
}

/// Lanes complete their instructions in order, so that a lane's number says it of each.
bool LaneSchedule::is_complete(int instruction, int64_t iteration) const {
  const Lane& lane = nth(lanes_, program_.instruction(instruction).lane);
  return lane.complete > end_of(lane, iteration) + nth(places_, instruction);
}

bool LaneSchedule::may_start(int number) const {
  const Lane& lane = nth(lanes_, number);
  const int64_t place = lane.complete + lane.under_way;
  if (place == end_of(lane, begun_)) return false;
  const Step step = step_at(lane, place);
  const int i = step.instruction;
  if (nth(independent_, i) < lane.under_way) return false;
  if (nth(has_turn_, i) && nth(issue_order_, issued_ % std::ssize(issue_order_)) != i) return false;
  return std::ranges::all_of(program_.instruction(i).after, [&](const Dependency& needed) {
    return is_complete(needed.instruction, step.iteration - needed.distance);
  });
}

int LaneSchedule::first_on_thread() const {
  int first = -1;
  for (int lane = 0; lane < lane_count(); ++lane)
    if (kind(lane) != LaneKind::comm && may_start(lane) && (first < 0 || current(lane) < current(first)))
      first = lane;
  return first;
}

Step LaneSchedule::start(int number) {
  Lane& lane = nth(lanes_, number);
  const Step step = step_at(lane, lane.complete + lane.under_way);
  ++lane.under_way;
  if (nth(has_turn_, step.instruction)) ++issued_;
  return step;
}

void LaneSchedule::complete(int number) {
  Lane& lane = nth(lanes_, number);
  ensure(lane.under_way > 0, "what is complete has started");
  const Step step = current(number);
  if (nth(reports_, step.instruction) && step.iteration + 1 == begun_) --reports_left_;
  --nth(left_, step.iteration % 2);
  --lane.under_way;
  ++lane.complete;
}

void LaneSchedule::pass(int lane) {
  start(lane);
  complete(lane);
}

void LaneSchedule::pass_all(int64_t iterations) {
  for (int number = 0; number < lane_count(); ++number) {
    Lane& lane = nth(lanes_, number);
    while (lane.complete < end_of(lane, iterations)) {
      if (lane.under_way == 0) start(number);
      complete(number);
    }
  }
}

}  // namespace lockstep::program
