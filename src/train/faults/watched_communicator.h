#pragma once

#include <memory>

#include "comm/forwarding_communicator.h"
#include "control/progress.h"

namespace lockstep::train {

/// A communicator that tells the watchdog when it waits. While synchronize() waits, the training thread
/// counts as waiting for its peers; afterwards its former activity is restored. Deadlines do not apply then,
/// because the watchdog can tell a late peer from a lost one. Communicators made by split() are not watched:
/// executors report for themselves. `progress` outlives it.
class WatchedCommunicator : public comm::ForwardingCommunicator {
 public:
  WatchedCommunicator(std::unique_ptr<comm::Communicator> inner, control::Progress& progress)
      : comm::ForwardingCommunicator(std::move(inner)), progress_(progress) {}

  /// Without a watchdog, deadlines apply.
  void set_watched(bool watched) { watched_ = watched; }

  void synchronize(device::Stream& stream, Deadline deadline) override;

 private:
  control::Progress& progress_;
  bool watched_ = true;
};

}  // namespace lockstep::train
