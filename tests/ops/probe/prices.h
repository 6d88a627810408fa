#pragma once

#include <functional>
#include <vector>

#include "gate.h"
#include "probe.h"

namespace lockstep::ops {

/// What calls cost.
class Prices {
 public:
  explicit Prices(Bench& bench);

  /// Adds to `line`, of one call: host_us, how long it takes the host while the stream is held up, and
  /// stream_us, how long it keeps the stream when nobody waits for the host; medians of five rounds of
  /// `calls`. "gated" is false if the host is too slow for that, as it is if a full queue makes it wait: then
  /// the stream was not held up, and stream_us may be what the host takes.
  void measure(Line& line, int calls, const std::function<void()>& call);

 private:
  struct Round {
    double host_us, stream_us;
  };
  /// None if the gate was to be closed, and opened by itself.
  std::vector<Round> rounds(int calls, const std::function<void()>& call, bool gated);

  Bench& bench_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<device::Event> begin_, end_;
};

/// Adds what is the CUDA backend's alone: captures, graphs, the queue's length, pinning. The emulated GPU has
/// none of it.
bool probe_cuda_launches(Bench& bench, Prices& prices, bool streams_write);

}  // namespace lockstep::ops
