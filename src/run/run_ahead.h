#pragma once

#include <array>
#include <functional>
#include <memory>

#include "device/device.h"

namespace lockstep::run {

/// Bounds the unfinished work of a stream. A GPU's driver accepts about a thousand kernels. A host that
/// launches more waits inside the driver, where it cannot notice a lost peer or a failed library. So the host
/// waits earlier, where it can notice them. It never waits for work that it has not issued yet; programs are
/// proven for ranks that issue in program order. Not thread-safe.
class RunAhead {
 public:
  /// How the host waits until the event, recorded in the stream, is ready. May throw.
  using Wait = std::function<void(device::Stream& stream, const device::Event& event)>;

  /// `most`: pieces of work, each of a few kernels; at least kParts. `stream` and `device` outlive this.
  RunAhead(device::Device& device, device::Stream& stream, int most);

  /// Call it when the stream has nothing to do.
  void begin();
  /// Call it after each piece of work. Calls `wait` if otherwise more than `most` pieces might be unfinished.
  void given(const Wait& wait);

  static constexpr int kParts = 4;  ///< so many events are looked at; a quarter of the pieces before each

 private:
  device::Stream& stream_;
  int pieces_per_part_;
  int pieces_ = 0, parts_ = 0;  // since begin(); of the part that has not ended, and parts that have
  std::array<std::unique_ptr<device::Event>, kParts> ends_;
};

}  // namespace lockstep::run
