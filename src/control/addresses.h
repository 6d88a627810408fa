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
  std::array<uint8_t, 16> bytes{};  ///< the first four if it is not v6
  int prefix_bits = 0;              ///< of its subnet
  std::string interface;
  bool loopback = false;
  bool operator==(const HostAddress&) const = default;
};

/// Where one rank runs. `machine` distinguishes hosts that have the same name.
struct RankPlace {
  std::string host, machine;
  int64_t pid = 0;
  std::vector<HostAddress> addresses;
  bool operator==(const RankPlace&) const = default;
};

/// All addresses except link-local ones, which are valid only on one interface.
std::vector<HostAddress> own_addresses();
/// Equal on two processes exactly if they are on one host: in one boot of one machine, in one network
/// namespace, under one name. Then they connect by the loopback interface. Each container has its own name.
std::string own_machine(const std::string& host);

std::string address_text(const HostAddress& address);
bool same_subnet(const HostAddress& address, const HostAddress& other);

/// The addresses at which rank 0 listens, given all ranks' places. If all are on one machine: loopback.
/// Otherwise: its addresses whose subnets contain an address of another machine or, if these do not cover
/// every machine (routed networks), all but loopback. Addresses that another machine has, too (a container
/// bridge), do not count. With `interface` (a name or an address): only that one; nothing if rank 0 does not
/// have it. Pure.
std::vector<HostAddress> choose_addresses(const std::vector<RankPlace>& places, std::string_view interface);

std::string encode_place(const RankPlace& place);
std::optional<RankPlace> decode_place(std::string_view bytes);

}  // namespace lockstep::control
