#pragma once

#include <functional>

#include "gate.h"
#include "probe.h"

namespace lockstep {

/// What calls cost.
class Prices {
 public:
  explicit Prices(Bench& bench);

  /// Adds to `line`, of one call: host_us, how long it takes the host while the stream is held up, and
  /// stream_us, how long it keeps the stream when nobody waits for the host; medians of five rounds of
  /// `calls`. "gated": false where the host had to wait for the stream, so that both hold less.
  void measure(Line& line, int calls, const std::function<void()>& call);

 private:
  struct Round {
    double host_us, stream_us;
    bool gated;
  };
  Round round(int calls, const std::function<void()>& call);

  Bench& bench_;
  std::unique_ptr<Gate> gate_;
  std::unique_ptr<Event> begin_, end_;
};

/// Adds what is the CUDA backend's alone: captures, graphs, the queue's length, pinning. The emulated GPU has
/// none of it.
bool probe_cuda_launches(Bench& bench, Prices& prices);

}  // namespace lockstep
