#include "run/lane_positions.h"

#include "run/executor.h"

namespace lockstep::run {

LanePositions::LanePositions(const program::Program& program, control::Progress& progress, int program_number)
    : program_(program),
      progress_(progress),
      program_number_(program_number),
      schedule_(program, {.communicates_in_order = false, .overlaps_exchanges = false}) {}

void LanePositions::begin(bool goes_on) {
  schedule_.pass_all(schedule_.begun() - (goes_on ? 1 : 0));
  schedule_.begin();
}

void LanePositions::look(int issued, const Done& done, const Done& left) {
  for (int lane = 0; lane < schedule_.lane_count(); ++lane)
    while (!schedule_.at_end(lane)) {
      const program::Step step = schedule_.current(lane);
      const bool is_done =
          is_left(step) ? left(step.instruction) : step.instruction < issued && done(step.instruction);
      if (!is_done) break;
      schedule_.pass(lane);
    }
  for (int lane = 0; lane < schedule_.lane_count(); ++lane) {
    if (schedule_.at_end(lane) || !schedule_.may_start(lane)) {
      enter(lane, control::Activity::idle, 0);
      continue;
    }
    const program::Step step = schedule_.current(lane);
    const bool works = is_left(step) || step.instruction <= issued;
    const auto activity = activity_of(program_.instruction(step.instruction).deadline);
    enter(lane, works ? activity : control::Activity::idle, works ? step.instruction : 0);
  }
}

void LanePositions::hush() {
  for (int lane = 0; lane < schedule_.lane_count(); ++lane) enter(lane, control::Activity::idle, 0);
}

/// Only what is new: to the watchdog, an entry that is written again is one that got on.
void LanePositions::enter(int lane, control::Activity activity, int instruction) {
  const int slot = control::Progress::lane_slot(lane);
  const auto before = progress_.at(slot);
  if (before.activity == activity &&
      (activity == control::Activity::idle || before.instruction == instruction))
    return;
  progress_.enter(slot, activity, program_number_, instruction);
}

}  // namespace lockstep::run
