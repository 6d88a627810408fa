#include "run/lane_positions.h"

#include <algorithm>

#include "base/index.h"
#include "run/executor.h"

namespace lockstep::run {

LanePositions::LanePositions(const program::Program& program, control::Progress& progress, int program_number)
    : program_(program), progress_(progress), program_number_(program_number), lanes_(program.lanes.size()) {
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    auto& lane = nth(lanes_, program.instructions[i].lane).instructions;
    places_.push_back(lane.size());
    lane.push_back(static_cast<int>(i));
  }
}

void LanePositions::begin(bool goes_on) {
  for (auto& lane : lanes_) {
    lane.done_before = goes_on ? lane.done : lane.instructions.size();
    lane.done = 0;
  }
}

void LanePositions::look(int issued, const Done& done, const Done& left) {
  for (auto& lane : lanes_) {
    while (lane.done_before < lane.instructions.size() && left(lane.instructions[lane.done_before]))
      ++lane.done_before;
    if (lane.done_before < lane.instructions.size()) continue;
    while (lane.done < lane.instructions.size() && lane.instructions[lane.done] < issued &&
           done(lane.instructions[lane.done]))
      ++lane.done;
  }
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const auto& [instructions, reached, reached_before] = lanes_[lane];
    const bool is_left = reached_before < instructions.size();
    const int next = is_left                         ? instructions[reached_before]
                     : reached < instructions.size() ? instructions[reached]
                                                     : issued + 1;
    const bool works = is_left ? starts_left(next) : next <= issued && starts(next);
    const auto& instruction = program_.instructions[works ? static_cast<size_t>(next) : 0];
    enter(lane, works ? activity_of(instruction.deadline) : control::Activity::idle, works ? next : 0);
  }
}

void LanePositions::hush() {
  for (size_t lane = 0; lane < lanes_.size(); ++lane) enter(lane, control::Activity::idle, 0);
}

bool LanePositions::starts(int instruction) const {
  const auto& after = program_.instruction(instruction).after;
  return std::all_of(after.begin(), after.end(), [&](const program::Dependency& dependency) {
    const Lane& lane = nth(lanes_, program_.instruction(dependency.instruction).lane);
    return nth(places_, dependency.instruction) < (dependency.distance > 0 ? lane.done_before : lane.done);
  });
}

bool LanePositions::starts_left(int instruction) const {
  const auto& after = program_.instruction(instruction).after;
  // That iteration began when the one before it was complete.
  return std::all_of(after.begin(), after.end(), [&](const program::Dependency& dependency) {
    const Lane& lane = nth(lanes_, program_.instruction(dependency.instruction).lane);
    return dependency.distance > 0 || nth(places_, dependency.instruction) < lane.done_before;
  });
}

/// Only what is new: to the watchdog, an entry that is written again is one that got on.
void LanePositions::enter(size_t lane, control::Activity activity, int instruction) {
  const int slot = control::Progress::lane_slot(static_cast<int>(lane));
  const auto before = progress_.at(slot);
  if (before.activity == activity &&
      (activity == control::Activity::idle || before.instruction == instruction))
    return;
  progress_.enter(slot, activity, program_number_, instruction);
}

}  // namespace lockstep::run
