#pragma once

#include <array>
#include <functional>
#include <string>

#include "base/clock.h"
#include "control/progress.h"
#include "control/rank_state.h"

namespace lockstep::control {

/// Measures how long each slot of a Progress is unchanged, by polling. Thread-safety: one thread.
class ProgressObserver {
 public:
  ProgressObserver(const Progress& progress, Clock::time_point now);

  void look(Clock::time_point now);
  /// This process was held up for `lost`; during this time its slots could not change.
  void forgive(Clock::duration lost);
  Heartbeat heartbeat(const std::function<std::string(const Progress::Entry&)>& describe,
                      Clock::time_point now) const;

 private:
  struct Seen {
    Progress::Entry entry;
    Clock::time_point since;
  };

  const Progress& progress_;
  std::array<Seen, Progress::kSlots> seen_;
};

}  // namespace lockstep::control
