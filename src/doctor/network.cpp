#include "doctor/network.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>

#include "base/text.h"
#include "control/addresses.h"
#include "control/endpoint.h"

namespace lockstep::doctor {
namespace {

constexpr int kFewPorts = 1000;  // each pair of ranks on different hosts takes some

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<control::HostAddress> loopback_address() {
  for (const auto& address : control::own_addresses())
    if (address.loopback && !address.v6) return address;
  return {};
}

/// Why this process cannot connect to itself; empty if it can.
std::string try_loopback(const control::HostAddress& address) {
  std::string error;
  const auto listener = control::listen_at(address, 0, error);
  if (!listener) return error;
  const control::Descriptor caller = control::begin_connecting(listener->endpoint, error);
  if (!caller.valid()) return error;
  pollfd waiting{.fd = caller.get(), .events = POLLOUT, .revents = 0};
  if (::poll(&waiting, 1, 2000) <= 0) return "no connection within 2 s";
  int status = 0;
  socklen_t size = sizeof(status);
  ::getsockopt(caller.get(), SOL_SOCKET, SO_ERROR, &status, &size);
  return status == 0 ? "" : std::strerror(status);
}

std::string describe(const InterfaceFacts& interface) {
  const std::string speed = interface.speed_mbit <= 0 ? ""
                            : interface.speed_mbit >= 1000
                                ? fmt::format(" ({:g} Gbit/s)", interface.speed_mbit / 1000.0)
                                : fmt::format(" ({} Mbit/s)", interface.speed_mbit);
  return fmt::format("{} {}{}", interface.name, join(interface.addresses, " "), speed);
}

bool is_called(const InterfaceFacts& interface, const std::string& chosen) {
  return interface.name == chosen || std::ranges::any_of(interface.addresses, [&](const std::string& each) {
           return each.substr(0, each.find('/')) == chosen;
         });
}

}  // namespace

int interface_speed_mbit(const std::string& name) {
  std::ifstream file("/sys/class/net/" + name + "/speed");
  int speed = 0;
  return file >> speed && speed > 0 ? speed : 0;
}

std::vector<InterfaceFacts> network_interfaces() {
  std::map<std::string, InterfaceFacts> by_name;
  for (const auto& address : control::own_addresses()) {
    if (address.loopback) continue;
    InterfaceFacts& interface = by_name[address.interface];
    interface.name = address.interface;
    interface.addresses.push_back(fmt::format("{}/{}", control::address_text(address), address.prefix_bits));
  }
  std::vector<InterfaceFacts> interfaces;
  for (auto& [name, interface] : by_name) {
    interface.speed_mbit = interface_speed_mbit(name);
    interfaces.push_back(std::move(interface));
  }
  return interfaces;
}

Finding judge_loopback(const LoopbackFacts& facts) {
  if (!facts.up) return {Level::fail, "the interface lo is down or has no address", "ip link set lo up"};
  if (!facts.problem.empty())
    return {Level::fail, "this host cannot connect to itself: " + facts.problem, "iptables -L INPUT -n"};
  return {Level::ok, "processes of this host can connect to each other"};
}

Finding judge_interfaces(const std::vector<InterfaceFacts>& interfaces, const std::string& chosen) {
  std::vector<std::string> texts;
  for (const auto& each : interfaces) texts.push_back(describe(each));
  if (!chosen.empty()) {
    const auto taken =
        std::ranges::find_if(interfaces, [&](const InterfaceFacts& each) { return is_called(each, chosen); });
    if (taken != interfaces.end()) return {Level::ok, "uses " + describe(*taken) + ", as asked for"};
    if (chosen == "lo") return {Level::ok, "uses lo, as asked for: one host only"};
    return {Level::fail,
            fmt::format("LOCKSTEP_CONTROL_INTERFACE is '{}', but there is {}", chosen,
                        texts.empty() ? "only lo" : join(texts, ", ")),
            interfaces.empty() ? "unset LOCKSTEP_CONTROL_INTERFACE"
                               : "export LOCKSTEP_CONTROL_INTERFACE=" + interfaces.front().name};
  }
  if (interfaces.empty()) return {Level::ok, "only lo: jobs on this host only"};
  if (interfaces.size() == 1)
    return {Level::ok, fmt::format("uses {} between hosts, and lo on this host", texts.front())};
  return {Level::ok, fmt::format("uses lo on this host; between hosts, the one of these that they share: {} "
                                 "(to choose one: launcher/lockstep-run --interface NAME)",
                                 join(texts, ", "))};
}

Finding judge_ports(const PortFacts& facts) {
  if (!facts.problem.empty() && !facts.fixed.empty())
    return {Level::fail, fmt::format("LOCKSTEP_CONTROL_PORT is {}: {}", facts.fixed, facts.problem),
            fmt::format("ss -ltnp 'sport = :{}', or unset LOCKSTEP_CONTROL_PORT", facts.fixed)};
  if (!facts.problem.empty())
    return {Level::fail, "processes cannot listen on a port: " + facts.problem, "ip link set lo up"};
  const int count = facts.last - facts.first + 1;
  if (facts.last > 0 && count < kFewPorts)
    return {Level::warn, fmt::format("the system offers only {} ports", count),
            "sysctl -w net.ipv4.ip_local_port_range='32768 60999'"};
  return {Level::ok,
          fmt::format("{}{}",
                      facts.last > 0 ? fmt::format("free ports from {} to {}", facts.first, facts.last)
                                     : std::string("a free port was found"),
                      facts.fixed.empty() ? "" : "; LOCKSTEP_CONTROL_PORT " + facts.fixed + " is free")};
}

std::vector<Finding> look_at_loopback(const Request&) {
  const auto address = loopback_address();
  return {judge_loopback(
      {.up = address.has_value(), .problem = address ? try_loopback(*address) : std::string()})};
}

std::vector<Finding> look_at_interfaces(const Request&) {
  return {judge_interfaces(network_interfaces(), variable("LOCKSTEP_CONTROL_INTERFACE"))};
}

std::vector<Finding> look_at_ports(const Request&) {
  PortFacts facts{.fixed = variable("LOCKSTEP_CONTROL_PORT"), .problem = {}};
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> facts.first >> facts.last;
  char* end = nullptr;
  const long port = std::strtol(facts.fixed.c_str(), &end, 10);
  if (!facts.fixed.empty() && (*end != '\0' || port < 1 || port > 65535)) {
    facts.problem = "expected a port from 1 to 65535";
    return {judge_ports(facts)};
  }
  // At all addresses, as rank 0 may.
  control::HostAddress any;
  const auto listener = control::listen_at(any, static_cast<int>(port), facts.problem);
  if (listener) facts.problem.clear();
  return {judge_ports(facts)};
}

}  // namespace lockstep::doctor
