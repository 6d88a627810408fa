#pragma once

#include <cstdint>
#include <functional>

#include "device/device.h"

namespace lockstep::device {

/// Shows the host one piece of a device's memory at a time: that memory itself where the host shares it,
/// otherwise a copy in host memory, taken once, so that a model of any size passes through a window of its
/// largest tensor. REQUIRES of both calls: nothing under way on the device writes the piece. Not thread-safe.
class HostWindow {
 public:
  /// Pieces have at most `most_bytes`. The device outlives this.
  HostWindow(Device& device, int64_t most_bytes);

  /// What lies at `data`; good until the next call.
  const void* read(const void* data, int64_t size_bytes);
  /// `fill` writes all of what shall lie at `data`, to where it is told.
  void write(void* data, int64_t size_bytes, const std::function<void(void* host)>& fill);

 private:
  void* copy_of(int64_t size_bytes) const;

  Device& device_;
  Buffer copy_;  // empty if the host shares the device's memory
};

}  // namespace lockstep::device
