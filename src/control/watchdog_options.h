#pragma once

#include <chrono>

namespace lockstep::control {

/// When a rank counts as lost or stuck. Every limit is far above the needs of a healthy job, because a false
/// alarm costs more than a few seconds of waiting.
struct WatchdogOptions {
  bool enabled = true;
  std::chrono::milliseconds heartbeat_interval{500};
  std::chrono::milliseconds silent_after{15000};       ///< without a heartbeat
  std::chrono::milliseconds compute_deadline{300000};  ///< one instruction that computes
  std::chrono::milliseconds input_deadline{
      300000};  ///< one micro-batch to load; also preparing and restoring
  std::chrono::milliseconds storage_deadline{600000};        ///< one write of a checkpoint
  std::chrono::milliseconds communication_deadline{120000};  ///< all ranks wait for each other
  bool operator==(const WatchdogOptions&) const = default;
};

}  // namespace lockstep::control
