#include "observe/phase_clock.h"

#include <gtest/gtest.h>

namespace lockstep::observe {
namespace {

using namespace std::chrono_literals;

TEST(PhaseClock, DividesTimeWithoutGaps) {
  const Clock::time_point start{};
  PhaseClock clock(start);
  EXPECT_EQ(clock.enter(RunPhase::steps, start + 10ms), RunPhase::start);
  EXPECT_EQ(clock.enter(RunPhase::evaluation, start + 30ms), RunPhase::steps);
  EXPECT_EQ(clock.enter(RunPhase::steps, start + 35ms), RunPhase::evaluation);
  const auto now = start + 100ms;
  EXPECT_EQ(clock.milliseconds(RunPhase::start, now), 10);
  EXPECT_EQ(clock.milliseconds(RunPhase::steps, now), 85);
  EXPECT_EQ(clock.milliseconds(RunPhase::evaluation, now), 5);
  EXPECT_EQ(clock.total_milliseconds(now), 100);
}

TEST(PhaseClock, TellsOfEachStay) {
  const Clock::time_point start{};
  PhaseClock clock(start);
  std::vector<std::pair<RunPhase, double>> stays;
  clock.on_end = [&](RunPhase phase, Clock::time_point begin, Clock::time_point end) {
    stays.emplace_back(phase, milliseconds_between(begin, end));
  };
  clock.enter(RunPhase::steps, start + 1ms);
  clock.enter(RunPhase::checkpoints, start + 4ms);
  EXPECT_EQ(stays, (std::vector<std::pair<RunPhase, double>>{{RunPhase::start, 1}, {RunPhase::steps, 3}}));
}

TEST(PhaseStay, ReturnsToThePhaseBefore) {
  PhaseClock clock{Clock::now()};
  clock.enter(RunPhase::steps);
  { const PhaseStay stay(&clock, RunPhase::evaluation); }
  EXPECT_EQ(clock.enter(RunPhase::end), RunPhase::steps);
  const PhaseStay nobody(nullptr, RunPhase::end);
}

}  // namespace
}  // namespace lockstep::observe
