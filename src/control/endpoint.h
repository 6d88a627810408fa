#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "control/addresses.h"
#include "control/descriptor.h"

namespace lockstep::control {

/// An address at which rank 0 can be reached.
struct Endpoint {
  HostAddress address;
  uint16_t port = 0;
};

std::string endpoint_text(const Endpoint& endpoint);  ///< "10.0.0.1:4321", "[fe00::1]:4321"
std::string endpoints_text(const std::vector<Endpoint>& endpoints);

struct Listener {
  Descriptor socket;
  Endpoint endpoint;
};
/// Listens at `port` (0: any free one) of `address`. Nothing, with the reason in `error`, if that is
/// impossible.
std::optional<Listener> listen_at(const HostAddress& address, int port, std::string& error);

/// Begins to connect: the socket becomes writable when it is connected, or has failed. Invalid if it failed
/// at once.
Descriptor begin_connecting(const Endpoint& endpoint, std::string& error);

}  // namespace lockstep::control
