#pragma once

#include "comm/conformance.h"
#include "device/device.h"

namespace lockstep::comm {

/// What a communicator that follows streams must do beyond the suite: run by all ranks at once, on the device
/// that `world` was made for.
struct StreamCheck {
  std::string_view name;
  void (*run)(Communicator& world, device::Device& device);
};

inline void PrintTo(const StreamCheck& check, std::ostream* out) { *out << check.name; }

std::span<const StreamCheck> stream_checks();

}  // namespace lockstep::comm
