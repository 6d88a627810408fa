#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace lockstep::observe {

struct InterfaceBytes {
  double sent = 0, received = 0;
  bool operator==(const InterfaceBytes&) const = default;
};
/// By the interface's name.
using NetworkBytes = std::map<std::string, InterfaceBytes>;

/// Bytes that this host's network interfaces have moved so far, by the kernel's count, including headers and
/// traffic of other programs; without the loopback interface. Empty if the kernel does not say.
NetworkBytes network_bytes();
/// The same from the text of /proc/net/dev.
NetworkBytes network_bytes_from(std::string_view text);

/// Bytes by interface since `before`, divided by `steps`; without interfaces that moved nothing.
NetworkBytes per_step(const NetworkBytes& before, const NetworkBytes& after, double steps);

}  // namespace lockstep::observe
