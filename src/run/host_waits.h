#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "comm/communicator.h"
#include "device/device.h"
#include "run/executor.h"
#include "run/lane_positions.h"

namespace lockstep::run {

/// Waits of the thread that issues a program's work: for the device, and for messages of the host. Meanwhile
/// it reports its own place and, if the device does not, that of the lanes. It also checks communicators, and
/// does the host's other work. Not thread-safe.
class HostWaits {
 public:
  struct Looks {
    /// Messages, and what goes on beside the program.
    std::function<void()> after_the_host;
    /// Whether the device is done with an instruction of this iteration, and of the one before.
    std::function<bool(int)> is_done, was_done;
  };

  /// All but `looks` must outlive it. `follows_lanes`: whether it finds out where the lanes are.
  HostWaits(const program::Program& program, const ExecutorOptions& options,
            const std::vector<comm::Communicator*>& communicators, bool follows_lanes, Looks looks);

  /// An iteration begins. `goes_on`: something of the one before may be left.
  void begin(bool goes_on);
  /// One more instruction of the iteration is issued, with its event.
  void issued() { ++issued_; }

  /// Waits for the event.
  void hold(device::Stream& stream, const device::Event& event);
  /// Waits until the stream has nothing to do.
  void drain(device::Stream& stream);
  /// Waits at an instruction for what the host gets from other ranks, or gives them; returns for how long, in
  /// ms.
  double wait_for_peers(int index, device::Stream& stream, const std::function<bool()>& done);

  void check_communicators() const;
  void report(control::Activity activity, int instruction = 0) const;
  /// The host may be held up too: by data, by a disk, in the driver. It does not wait for other ranks.
  void report_issuing(int index) const;
  /// Stops reports about lanes that the host follows.
  void hush();
  /// Where the lanes are, as far as it is known; may be empty.
  std::string under_way();

  Deadline deadline() const;

 private:
  void wait_for(device::Stream& stream, const std::function<bool()>& done);
  void look_at_lanes();
  bool any_lane_tells() const;

  const program::Program& program_;
  const ExecutorOptions& options_;
  const std::vector<comm::Communicator*>& communicators_;
  Looks looks_;
  std::unique_ptr<LanePositions> positions_;  // null if the device tells by itself, or nobody wants to know
  int issued_ = 0;
};

}  // namespace lockstep::run
