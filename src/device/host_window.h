#pragma once

#include <cstdint>
#include <functional>

#include "device/device.h"

namespace lockstep::device {

/// Shows the host one piece of a device's memory at a time: the memory itself if the host shares it,
/// otherwise a copy in host memory, which is allocated once. So a model of any size passes through a window
/// of its largest tensor. Not thread-safe. REQUIRES for both calls: no work in flight on the device writes
/// the piece.
class HostWindow {
 public:
  /// Pieces have at most `most_bytes`. The device outlives this.
  HostWindow(Device& device, int64_t most_bytes);

  /// The contents at `data`, valid until the next call.
  const void* read(const void* data, int64_t size_bytes);
  /// `fill` writes the new contents of `data` to the address that it gets.
  void write(void* data, int64_t size_bytes, const std::function<void(void* host)>& fill);

 private:
  void* copy_of(int64_t size_bytes) const;

  Device& device_;
  Buffer copy_;  // empty if the host shares the device's memory
};

}  // namespace lockstep::device
