#pragma once

#include <functional>

#include "control/progress.h"
#include "program/lane_schedule.h"

namespace lockstep::run {

/// Tracks a device's position in a program by the events after its instructions, if the device cannot write
/// it itself (Device::share_host_memory). The lanes' slots of `progress` are valid only between look() and
/// hush(): while the host does something else, nobody checks the device, and an unchanged entry would look
/// like a stuck device. Program order is the order of issue. A lane is in the preceding iteration until all
/// of its instructions there are done. Not thread-safe.
class LanePositions {
 public:
  LanePositions(const program::Program& program, control::Progress& progress, int program_number);

  /// Whether an instruction is done; not called again once it is.
  using Done = std::function<bool(int instruction)>;

  /// A new iteration: nothing was issued. `goes_on`: something may be left of the one before, all of which
  /// was issued.
  void begin(bool goes_on = false);
  /// The first `issued` instructions were issued completely, the next one perhaps in part. `left` is asked
  /// about the iteration before.
  void look(int issued, const Done& done, const Done& left);
  /// No lane says anything.
  void hush();

 private:
  bool is_left(const program::Step& step) const { return step.iteration + 1 < schedule_.begun(); }
  void enter(int lane, control::Activity activity, int instruction);

  const program::Program& program_;
  control::Progress& progress_;
  int program_number_;
  program::LaneSchedule schedule_;  // on a device each lane starts what it may by itself
};

}  // namespace lockstep::run
