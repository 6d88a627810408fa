#include "doctor/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mentions.h"

namespace lockstep::doctor {
namespace {

using testing::HasSubstr;

const std::vector<InterfaceFacts> kTwo{{"docker0", {"172.17.0.1/16"}, 0},
                                       {"eth0", {"10.0.0.5/24", "fd00::5/64"}, 100000}};

TEST(DoctorNetwork, LoopbackMustBeUpAndOpen) {
  EXPECT_EQ(judge_loopback({.up = true, .problem = ""}).level, Level::ok);
  EXPECT_EQ(judge_loopback({.up = false, .problem = ""}).fix, "ip link set lo up");
  EXPECT_EQ(judge_loopback({.up = true, .problem = "Connection refused"}).found,
            "this host cannot connect to itself: Connection refused");
}

TEST(DoctorNetwork, SaysWhichInterfaceWillBeTaken) {
  EXPECT_THAT(judge_interfaces({}, "").found, HasSubstr("only lo"));
  EXPECT_THAT(judge_interfaces({kTwo[1]}, "").found,
              Mentions("eth0 10.0.0.5/24 fd00::5/64 (100 Gbit/s) between hosts ... lo"));
  EXPECT_THAT(judge_interfaces(kTwo, "").found, HasSubstr("docker0 172.17.0.1/16, eth0 10.0.0.5/24"));
  EXPECT_THAT(judge_interfaces(kTwo, "eth0").found,
              Mentions("eth0 10.0.0.5/24 fd00::5/64 (100 Gbit/s) ... asked"));
  EXPECT_EQ(judge_interfaces(kTwo, "10.0.0.5").level, Level::ok);
  EXPECT_EQ(judge_interfaces(kTwo, "10.0.0").level, Level::fail);
  EXPECT_EQ(judge_interfaces({{"eth1", {"10.0.0.5/24"}, 100}}, "eth0").fix,
            "export LOCKSTEP_CONTROL_INTERFACE=eth1");
  EXPECT_EQ(judge_interfaces({}, "eth0").fix, "unset LOCKSTEP_CONTROL_INTERFACE");
}

TEST(DoctorNetwork, PortsThatAreTakenOrFewAreNamed) {
  EXPECT_EQ(judge_ports({32768, 60999, "", ""}), (Finding{Level::ok, "free ports from 32768 to 60999"}));
  EXPECT_EQ(judge_ports({32768, 60999, "4000", ""}).found,
            "free ports from 32768 to 60999; LOCKSTEP_CONTROL_PORT 4000 is free");
  const Finding taken = judge_ports({32768, 60999, "4000", "Address already in use"});
  EXPECT_EQ(taken.level, Level::fail);
  EXPECT_EQ(taken.fix, "ss -ltnp 'sport = :4000', or unset LOCKSTEP_CONTROL_PORT");
  EXPECT_EQ(judge_ports({60000, 60099, "", ""}).level, Level::warn);
  EXPECT_EQ(judge_ports({32768, 60999, "", "Permission denied"}).level, Level::fail);
}

}  // namespace
}  // namespace lockstep::doctor
