#include "data/stage_clock.h"

#include <utility>

#include "base/clock.h"

namespace lockstep::data {
namespace {

struct ThreadStages {
  int current = -1;  // a DataStage
  Clock::time_point since;
  StageTimes times_ms{};
};
thread_local ThreadStages stages_of_thread;

int switch_stage(int next) {
  ThreadStages& stages = stages_of_thread;
  const auto now = Clock::now();
  if (stages.current >= 0)
    stages.times_ms[static_cast<size_t>(stages.current)] += milliseconds_between(stages.since, now);
  stages.since = now;
  return std::exchange(stages.current, next);
}

}  // namespace

std::string_view name_of(DataStage stage) {
  static constexpr std::string_view kNames[] = {"read", "decode", "transform"};
  return kNames[static_cast<size_t>(stage)];
}

StageTimes stage_times_of_thread() { return stages_of_thread.times_ms; }

StageTimer::StageTimer(DataStage stage) : outer_(switch_stage(static_cast<int>(stage))) {}
StageTimer::~StageTimer() { switch_stage(outer_); }

}  // namespace lockstep::data
