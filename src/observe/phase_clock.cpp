#include "observe/phase_clock.h"

#include <utility>

namespace lockstep::observe {

std::string_view name_of(RunPhase phase) {
  constexpr std::array<std::string_view, kRunPhases> kNames = {"start", "steps", "evaluation", "checkpoints",
                                                               "end"};
  return nth(kNames, static_cast<int>(phase));
}

RunPhase PhaseClock::enter(RunPhase phase, Clock::time_point now) {
  nth(milliseconds_, static_cast<int>(phase_)) += milliseconds_between(since_, now);
  if (on_end) on_end(phase_, since_, now);
  since_ = now;
  return std::exchange(phase_, phase);
}

double PhaseClock::milliseconds(RunPhase phase, Clock::time_point now) const {
  return nth(milliseconds_, static_cast<int>(phase)) +
         (phase == phase_ ? milliseconds_between(since_, now) : 0);
}

double PhaseClock::total_milliseconds(Clock::time_point now) const {
  double total = milliseconds_between(since_, now);
  for (const double each : milliseconds_) total += each;
  return total;
}

}  // namespace lockstep::observe
