#pragma once

#include <deque>
#include <functional>

#include "device/device.h"

namespace lockstep::run {

/// Pending deliveries of instructions whose other part a device does (Action::deliver), in the order of
/// issue: a message's bytes must be in host memory first. Nothing here waits; code that waits for anything
/// else calls advance(). Not thread-safe.
class Deliveries {
 public:
  /// `done`: recorded in `stream` after the device's part. Both outlive this; the event is recorded again
  /// only after the delivery. `place`: 0 or 1, of the iteration.
  void add(int place, int instruction, device::Stream& stream, const device::Event& done);
  using Deliver = std::function<void(int place, int instruction)>;
  /// Calls `deliver`, in order, for all instructions whose device part is done.
  void advance(const Deliver& deliver);
  bool any(int place) const;
  bool has(int instruction) const;
  /// After an error.
  void forget() { waiting_.clear(); }

 private:
  struct Delivery {
    int place, instruction;
    device::Stream* stream;
    const device::Event* done;
  };
  std::deque<Delivery> waiting_;
};

}  // namespace lockstep::run
