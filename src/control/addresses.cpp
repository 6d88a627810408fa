#include "control/addresses.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <memory>

#include "control/byte_codec.h"

namespace lockstep::control {
namespace {

std::optional<HostAddress> read_address(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || entry.ifa_netmask == nullptr || (entry.ifa_flags & IFF_UP) == 0) return {};
  HostAddress address;
  address.interface = entry.ifa_name;
  address.loopback = (entry.ifa_flags & IFF_LOOPBACK) != 0;
  std::array<uint8_t, 16> mask{};
  if (entry.ifa_addr->sa_family == AF_INET) {
    std::memcpy(address.bytes.data(), &reinterpret_cast<const sockaddr_in*>(entry.ifa_addr)->sin_addr, 4);
    std::memcpy(mask.data(), &reinterpret_cast<const sockaddr_in*>(entry.ifa_netmask)->sin_addr, 4);
  } else if (entry.ifa_addr->sa_family == AF_INET6) {
    address.v6 = true;
    const auto* v6 = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
    if (IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr)) return {};
    std::memcpy(address.bytes.data(), &v6->sin6_addr, 16);
    std::memcpy(mask.data(), &reinterpret_cast<const sockaddr_in6*>(entry.ifa_netmask)->sin6_addr, 16);
  } else {
    return {};
  }
  for (const uint8_t byte : mask) address.prefix_bits += std::popcount(byte);
  return address;
}

bool same_bytes(const HostAddress& a, const HostAddress& b) { return a.v6 == b.v6 && a.bytes == b.bytes; }

bool has(const RankPlace& place, const HostAddress& address) {
  return std::any_of(place.addresses.begin(), place.addresses.end(),
                     [&](const HostAddress& each) { return same_bytes(each, address); });
}

bool reaches(const HostAddress& address, const RankPlace& place) {
  return !has(place, address) &&
         std::any_of(place.addresses.begin(), place.addresses.end(),
                     [&](const HostAddress& each) { return !each.loopback && same_subnet(address, each); });
}

}  // namespace

std::vector<HostAddress> own_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<HostAddress> addresses;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next)
    if (auto address = read_address(*entry)) addresses.push_back(std::move(*address));
  return addresses;
}

std::string own_machine(const std::string& host) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network {};
  if (::stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return fmt::format("{} {} {}", host, boot, network.st_ino);
}

std::string address_text(const HostAddress& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(address.v6 ? AF_INET6 : AF_INET, address.bytes.data(), text.data(), text.size());
  return text.data();
}

bool same_subnet(const HostAddress& address, const HostAddress& other) {
  if (address.v6 != other.v6) return false;
  for (int bit = 0; bit < address.prefix_bits; bit += 8) {
    const auto byte = static_cast<size_t>(bit / 8);
    const int kept = std::min(8, address.prefix_bits - bit);
    const auto mask = static_cast<uint8_t>(0xff << (8 - kept));
    if ((address.bytes[byte] & mask) != (other.bytes[byte] & mask)) return false;
  }
  return true;
}

std::vector<HostAddress> choose_addresses(const std::vector<RankPlace>& places, std::string_view interface) {
  const RankPlace& root = places.front();
  std::vector<HostAddress> chosen;
  const auto keep = [&](const auto& wanted) {
    chosen.clear();
    std::copy_if(root.addresses.begin(), root.addresses.end(), std::back_inserter(chosen), wanted);
  };
  if (!interface.empty()) {
    keep([&](const HostAddress& each) {
      return each.interface == interface || address_text(each) == interface;
    });
    return chosen;
  }
  const auto elsewhere = [&](const RankPlace& place) { return place.machine != root.machine; };
  if (std::none_of(places.begin(), places.end(), elsewhere)) {
    keep([](const HostAddress& each) { return each.loopback; });
    if (!chosen.empty()) chosen.resize(1);
    if (!chosen.empty()) return chosen;
  }
  keep([&](const HostAddress& each) {
    return !each.loopback && std::any_of(places.begin(), places.end(), [&](const RankPlace& place) {
      return elsewhere(place) && reaches(each, place);
    });
  });
  const bool covers_all = std::all_of(places.begin(), places.end(), [&](const RankPlace& place) {
    return !elsewhere(place) || std::any_of(chosen.begin(), chosen.end(),
                                            [&](const HostAddress& each) { return reaches(each, place); });
  });
  if (!covers_all || chosen.empty()) keep([](const HostAddress& each) { return !each.loopback; });
  return chosen;
}

std::string encode_place(const RankPlace& place) {
  ByteWriter writer;
  writer.text(place.host)
      .text(place.machine)
      .number(place.pid)
      .number(static_cast<uint32_t>(place.addresses.size()));
  for (const auto& address : place.addresses)
    writer.number(static_cast<uint8_t>(address.v6))
        .raw({reinterpret_cast<const char*>(address.bytes.data()), address.bytes.size()})
        .number(static_cast<uint8_t>(address.prefix_bits))
        .text(address.interface)
        .number(static_cast<uint8_t>(address.loopback));
  return writer.take();
}

std::optional<RankPlace> decode_place(std::string_view bytes) {
  ByteReader reader(bytes);
  RankPlace place;
  place.host = reader.text();
  place.machine = reader.text();
  place.pid = reader.number<int64_t>();
  const auto count = reader.number<uint32_t>();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    HostAddress address;
    address.v6 = reader.number<uint8_t>() != 0;
    const std::string_view raw = reader.raw(address.bytes.size());
    std::copy(raw.begin(), raw.end(), address.bytes.begin());
    address.prefix_bits = reader.number<uint8_t>();
    address.interface = reader.text();
    address.loopback = reader.number<uint8_t>() != 0;
    place.addresses.push_back(std::move(address));
  }
  if (!reader.finished()) return {};
  return place;
}

}  // namespace lockstep::control
