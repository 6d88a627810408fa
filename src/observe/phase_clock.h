#pragma once

#include <array>
#include <functional>
#include <string_view>

#include "base/clock.h"
#include "base/index.h"

namespace lockstep::observe {

/// What a run's process does, from its start to its end: one of these at any time.
enum class RunPhase {
  start,  ///< until the first step begins
  steps,  ///< the loop of steps, with its reports
  evaluation,
  checkpoints,  ///< copying, and waiting for files at the end; writing goes on beside steps
  end,          ///< the report, sinks
};
inline constexpr int kRunPhases = 5;
std::string_view name_of(RunPhase phase);

/// Divides the time of a process among phases, without gaps. Thread-safety: one thread.
class PhaseClock {
 public:
  explicit PhaseClock(Clock::time_point process_start) : since_(process_start) {}

  /// Returns the phase that this one follows.
  RunPhase enter(RunPhase phase, Clock::time_point now = Clock::now());
  /// Up to `now`.
  double milliseconds(RunPhase phase, Clock::time_point now = Clock::now()) const;
  double total_milliseconds(Clock::time_point now = Clock::now()) const;

  /// Called at the end of each stay in a phase; may be empty.
  std::function<void(RunPhase phase, Clock::time_point begin, Clock::time_point end)> on_end;

 private:
  RunPhase phase_ = RunPhase::start;
  Clock::time_point since_;
  std::array<double, kRunPhases> milliseconds_{};
};

/// Is in a phase as long as it lives, and returns to the one before. `clock` may be null.
class PhaseStay {
 public:
  PhaseStay(PhaseClock* clock, RunPhase phase) : clock_(clock) {
    if (clock_ != nullptr) before_ = clock_->enter(phase);
  }
  ~PhaseStay() {
    if (clock_ != nullptr) clock_->enter(before_);
  }
  PhaseStay(const PhaseStay&) = delete;
  PhaseStay& operator=(const PhaseStay&) = delete;

 private:
  PhaseClock* clock_;
  RunPhase before_ = RunPhase::start;
};

}  // namespace lockstep::observe
