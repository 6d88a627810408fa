#pragma once

#include <memory>

#include "device/device.h"

namespace lockstep::ops {

/// Holds a stream up while work for it is enqueued, so that the time of that work is the stream's alone.
class Gate {
 public:
  virtual ~Gate() = default;
  /// What `stream` gets from now on waits for open(), or for a second at most.
  virtual void close(device::Stream& stream) = 0;
  /// Returns whether nothing has passed before: false if more than that second has gone by.
  virtual bool open() = 0;
};
std::unique_ptr<Gate> make_gate(device::Device& device);

}  // namespace lockstep::ops
