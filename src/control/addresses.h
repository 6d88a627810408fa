#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::control {

/// An address of an interface of this machine.
struct HostAddress {
  bool v6 = false;
  std::array<uint8_t, 16> bytes{};  ///< the first four where it is not v6
  int prefix_bits = 0;              ///< of its subnet
  std::string interface;
  bool loopback = false;
  bool operator==(const HostAddress&) const = default;
};

/// Where one rank runs. `machine` tells apart what a host name alone may not.
struct RankPlace {
  std::string host, machine;
  int64_t pid = 0;
  std::vector<HostAddress> addresses;
  bool operator==(const RankPlace&) const = default;
};

/// Every address but link-local ones, which mean something on one interface only.
std::vector<HostAddress> own_addresses();
/// Equal on two processes exactly where they are on one host: in one boot of one machine, in one network
/// namespace, under one name. Then they meet on the loopback interface. Containers have names of their own.
std::string own_machine(const std::string& host);

std::string address_text(const HostAddress& address);
bool same_subnet(const HostAddress& address, const HostAddress& other);

/// Where rank 0 listens, given all ranks' places: loopback where all are on one machine; otherwise those of
/// its addresses whose subnets hold an address of another machine, or all but loopback where that does not
/// cover every machine (routed networks). An address that another machine has as well (a container bridge) is
/// none. Where `interface` (a name or an address) is given, only what it names: nothing where rank 0 has no
/// such. Pure.
std::vector<HostAddress> choose_addresses(const std::vector<RankPlace>& places, std::string_view interface);

std::string encode_place(const RankPlace& place);
std::optional<RankPlace> decode_place(std::string_view bytes);

}  // namespace lockstep::control
