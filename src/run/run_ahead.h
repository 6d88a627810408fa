#pragma once

#include <array>
#include <functional>
#include <memory>

#include "device/device.h"

namespace lockstep::run {

/// Bounds how much of a stream's work is given to it before it is done. A GPU's driver takes about a thousand
/// kernels; whoever launches more waits inside the driver, where it can look after nobody: not after a peer
/// that is lost, nor after a library that has failed. So the host waits before that, where it can. It never
/// waits for what it has not issued yet, and programs are proven for ranks that issue in program order.
/// Not thread-safe.
class RunAhead {
 public:
  /// How the host waits until the event, recorded in the stream, is ready. May throw.
  using Wait = std::function<void(device::Stream& stream, const device::Event& event)>;

  /// `most`: pieces of work, each of a few kernels; at least kParts. `stream` and `device` outlive this.
  RunAhead(device::Device& device, device::Stream& stream, int most);

  /// The stream has nothing to do.
  void begin();
  /// The stream was given a piece of work. Calls `wait` if more than `most` might not be done otherwise.
  void given(const Wait& wait);

  static constexpr int kParts = 4;  ///< so many events are looked at; a quarter of the pieces before each

 private:
  device::Stream& stream_;
  int pieces_per_part_;
  int pieces_ = 0, parts_ = 0;  // since begin(); of the part that has not ended, and parts that have
  std::array<std::unique_ptr<device::Event>, kParts> ends_;
};

}  // namespace lockstep::run
