#pragma once

#include <memory>

#include "comm/forwarding_communicator.h"
#include "control/progress.h"

namespace lockstep::train {

/// A communicator whose waiting the watchdog knows of: while synchronize() waits, the training thread counts
/// as waiting for its peers, and whatever it did before is what it does afterwards. Deadlines do not count
/// then, since the watchdog tells a peer that is late from one that is lost. What split() makes is not
/// watched: executors report for themselves. `progress` outlives it.
class WatchedCommunicator : public comm::ForwardingCommunicator {
 public:
  WatchedCommunicator(std::unique_ptr<comm::Communicator> inner, control::Progress& progress)
      : comm::ForwardingCommunicator(std::move(inner)), progress_(progress) {}

  /// Where nobody watches, deadlines count.
  void set_watched(bool watched) { watched_ = watched; }

  void synchronize(device::Stream& stream, Deadline deadline) override;

 private:
  control::Progress& progress_;
  bool watched_ = true;
};

}  // namespace lockstep::train
