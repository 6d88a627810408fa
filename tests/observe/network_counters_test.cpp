#include "observe/network_counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::observe {
namespace {

using testing::IsEmpty;

constexpr std::string_view kText =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls "
    "carrier compressed\n"
    "    lo:  900       9    0    0    0     0          0         0      900       9    0    0    0     0    "
    "   "
    "0          0\n"
    "  eth0:1234567890123 9    0    0    0     0          0         0     4000      33    0    0    0     0  "
    "    "
    " 0          0\n"
    "wlan-0: 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0\n";

TEST(NetworkCounters, AreReadFromTheKernelsTable) {
  EXPECT_EQ(network_bytes_from(kText), (NetworkBytes{{"eth0", {.sent = 4000, .received = 1234567890123.0}},
                                                     {"wlan-0", {.sent = 17, .received = 0}}}));
  EXPECT_THAT(network_bytes_from(""), IsEmpty());
  EXPECT_THAT(network_bytes_from("eth0: 1 2 3\n"), IsEmpty()) << "a line that ends too early";
}

TEST(NetworkCounters, DiffersByStepAndLeavesOutWhatDidNothing) {
  const NetworkBytes before{{"a", {.sent = 100, .received = 10}}, {"idle", {.sent = 5, .received = 5}}};
  const NetworkBytes after{{"a", {.sent = 500, .received = 10}},
                           {"idle", {.sent = 5, .received = 5}},
                           {"new", {.sent = 9, .received = 9}}};
  EXPECT_EQ(per_step(before, after, 4), (NetworkBytes{{"a", {.sent = 100, .received = 0}}}));
}

}  // namespace
}  // namespace lockstep::observe
