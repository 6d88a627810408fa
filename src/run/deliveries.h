#pragma once

#include <deque>
#include <functional>

#include "device/device.h"

namespace lockstep::run {

/// What the host is still to give away of instructions whose other part a device does (Action::deliver), in
/// the order in which they were issued: a message's bytes have to be in the host's memory first. Nothing
/// waits; whoever waits for anything else calls advance(). Not thread-safe.
class Deliveries {
 public:
  /// `done`: recorded in `stream` after the device's part. Both outlive this; the event is recorded again
  /// only after the delivery. `place`: 0 or 1, of the iteration.
  void add(int place, int instruction, device::Stream& stream, const device::Event& done);
  using Deliver = std::function<void(int place, int instruction)>;
  /// Calls `deliver`, in turn, for all that the device is done with.
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
