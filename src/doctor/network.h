#pragma once

#include <string>
#include <vector>

#include "doctor/check.h"

namespace lockstep::doctor {

struct LoopbackFacts {
  bool up = false;
  std::string problem;  ///< of a connection of this process to itself; empty: it works
};
Finding judge_loopback(const LoopbackFacts& facts);

struct InterfaceFacts {
  std::string name;
  std::vector<std::string> addresses;  ///< "10.0.0.1/24"
  int speed_mbit = 0;                  ///< as the interface says; 0: it does not
};
/// Interfaces by name that are up and have an address, without the loopback.
std::vector<InterfaceFacts> network_interfaces();
/// The speed that an interface states, in Mbit/s; 0 if it states none.
int interface_speed_mbit(const std::string& name);
/// `chosen`: LOCKSTEP_CONTROL_INTERFACE, a name or an address; empty: not set.
Finding judge_interfaces(const std::vector<InterfaceFacts>& interfaces, const std::string& chosen);

struct PortFacts {
  int first = 0, last = 0;  ///< of those that the system gives out; 0: unknown
  std::string fixed;        ///< LOCKSTEP_CONTROL_PORT; empty: not set
  std::string problem;      ///< why nothing can listen there, or at any free port if it is not set
};
Finding judge_ports(const PortFacts& facts);

std::vector<Finding> look_at_loopback(const Request& request);
std::vector<Finding> look_at_interfaces(const Request& request);
std::vector<Finding> look_at_ports(const Request& request);

}  // namespace lockstep::doctor
