#include "control/addresses.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include "base/text.h"

namespace lockstep::control {
namespace {

HostAddress address(const std::string& interface, const std::string& text, int prefix_bits) {
  HostAddress result{.interface = interface, .loopback = interface == "lo"};
  result.v6 = text.find(':') != std::string::npos;
  result.prefix_bits = prefix_bits;
  EXPECT_EQ(inet_pton(result.v6 ? AF_INET6 : AF_INET, text.c_str(), result.bytes.data()), 1) << text;
  return result;
}
HostAddress loopback() { return address("lo", "127.0.0.1", 8); }

RankPlace place(const std::string& host, std::vector<HostAddress> addresses) {
  return {host, "machine of " + host, 1, std::move(addresses)};
}

std::string chosen(const std::vector<RankPlace>& places, std::string_view interface = "") {
  std::vector<std::string> texts;
  for (const auto& each : choose_addresses(places, interface)) texts.push_back(address_text(each));
  return join(texts, " ");
}

const RankPlace kA =
    place("a", {loopback(), address("eth0", "10.0.0.1", 24), address("ib0", "192.168.7.1", 16),
                address("docker0", "172.17.0.1", 16), address("eth0", "fd00::1", 64)});

TEST(ControlAddresses, OneHostUsesLoopbackAlone) { EXPECT_EQ(chosen({kA, kA, kA}), "127.0.0.1"); }

TEST(ControlAddresses, EqualHostNamesOnTwoMachinesAreTwoHosts) {
  RankPlace twin = place("a", {loopback(), address("eth0", "10.0.0.2", 24)});
  twin.machine = "another machine";
  EXPECT_EQ(chosen({kA, twin}), "10.0.0.1");
}

TEST(ControlAddresses, SeveralHostsUseTheSubnetsThatTheyShare) {
  EXPECT_EQ(chosen({kA, place("b", {loopback(), address("eth1", "10.0.0.2", 24)})}), "10.0.0.1");
  EXPECT_EQ(chosen({kA, place("b", {address("ib0", "192.168.200.3", 16), address("e", "fd00::2", 64)})}),
            "192.168.7.1 fd00::1");
  EXPECT_EQ(
      chosen({kA, place("b", {address("e", "10.0.0.2", 24)}), place("c", {address("i", "192.168.0.9", 16)})}),
      "10.0.0.1 192.168.7.1");
}

TEST(ControlAddresses, ABridgeThatEveryHostHasLeadsNowhere) {
  EXPECT_EQ(chosen({kA, place("b", {address("e", "10.0.0.2", 24), address("docker0", "172.17.0.1", 16)})}),
            "10.0.0.1");
}

TEST(ControlAddresses, RoutedHostsGetAllButLoopback) {
  EXPECT_EQ(chosen({kA, place("b", {loopback(), address("eth0", "10.0.9.2", 24)})}),
            "10.0.0.1 192.168.7.1 172.17.0.1 fd00::1");
  // One host shares a subnet, the other is behind a router.
  EXPECT_EQ(
      chosen({kA, place("b", {address("e", "10.0.0.2", 24)}), place("c", {address("e", "10.5.0.2", 24)})}),
      "10.0.0.1 192.168.7.1 172.17.0.1 fd00::1");
}

TEST(ControlAddresses, AChoiceIsObeyedByNameAndByAddress) {
  const auto b = place("b", {address("e", "10.0.0.2", 24)});
  EXPECT_EQ(chosen({kA, b}, "ib0"), "192.168.7.1");
  EXPECT_EQ(chosen({kA, b}, "eth0"), "10.0.0.1 fd00::1");
  EXPECT_EQ(chosen({kA, b}, "fd00::1"), "fd00::1");
  EXPECT_EQ(chosen({kA, kA}, "eth7"), "");
}

TEST(ControlAddresses, SubnetsEndAtAnyBit) {
  EXPECT_TRUE(same_subnet(address("e", "10.0.0.1", 30), address("e", "10.0.0.2", 24)));
  EXPECT_FALSE(same_subnet(address("e", "10.0.0.1", 30), address("e", "10.0.0.4", 24)));
  EXPECT_TRUE(same_subnet(address("e", "10.0.0.1", 0), address("e", "77.0.0.4", 24)));
  EXPECT_FALSE(same_subnet(address("e", "10.0.0.1", 0), address("e", "::1", 24)));
}

TEST(ControlAddresses, TravelAsTheyAre) {
  EXPECT_EQ(decode_place(encode_place(kA)), kA);
  const std::string bytes = encode_place(kA);
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(decode_place(bytes.substr(0, size))) << size;
}

TEST(ControlAddresses, OfThisMachineAreReadable) {
  for (const auto& each : own_addresses()) {
    EXPECT_FALSE(address_text(each).empty());
    EXPECT_FALSE(each.interface.empty());
    EXPECT_LE(each.prefix_bits, each.v6 ? 128 : 32);
  }
  EXPECT_EQ(own_machine("a"), own_machine("a"));
  EXPECT_NE(own_machine("a"), own_machine("b"));  // containers share a machine, but no memory
}

}  // namespace
}  // namespace lockstep::control
