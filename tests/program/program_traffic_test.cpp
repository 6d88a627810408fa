#include "program/program_traffic.h"

#include <gtest/gtest.h>

#include "program/golden_programs.h"

namespace lockstep::program {
namespace {

int64_t sent(const std::string& golden, size_t rank) {
  return traffic_of(load_golden(golden)[rank]).sent_bytes;
}

TEST(ProgramTraffic, CountsSendsOfExchangesAsTheyStand) {
  // Halves of buckets of 128, 64 and 128 bytes, twice, and its record of an agreement to one other rank.
  EXPECT_EQ(sent("dp2_tree", 0), 128 + 64 + 128 + 80);
  EXPECT_EQ(sent("dp2_tree", 1), 128 + 64 + 128 + 80);
}

TEST(ProgramTraffic, CountsTwoBytesOfAnElementOfANarrowWire) {
  EXPECT_EQ(sent("dp2_wire", 0), (128 + 64 + 128) / 2 + 80);
  EXPECT_EQ(sent("dp2_feedback", 0), sent("dp2_wire", 0));
}

TEST(ProgramTraffic, CountsCollectivesAsTheirBestAlgorithmsSend) {
  // Two ranks: an all-reduce sends its bytes once over; buckets of 128, 128 and 64 bytes.
  EXPECT_EQ(sent("dp2_fast", 0), 128 + 128 + 64 + 48);
  // An agreement of three ranks on records of 48 bytes: beside it a worker sends its gradients to the server,
  // which sends both workers parameters of as many bytes.
  EXPECT_EQ(sent("ps_sync", 0), 128 + 64 + 2 * 48);
  EXPECT_EQ(sent("ps_sync", 2), 2 * (128 + 64) + 2 * 48);
}

TEST(ProgramTraffic, CountsARingsBlocksButTheOneThatEndsThere) {
  // Buckets of 128, 128 and 64 bytes: scattered, rank 0 sends rank 1's blocks of 64, 48 and 32, and then its
  // own.
  EXPECT_EQ(sent("dp2_ring", 0), (64 + 48 + 32) + (64 + 80 + 32) + 48);
  EXPECT_EQ(sent("dp2_ring", 1), (64 + 80 + 32) + (64 + 48 + 32) + 48);
  // Half of each bucket scattered, half of each parameter buffer gathered, and sums of 40 bytes.
  EXPECT_EQ(sent("dp2_sharded", 0), 4 * 262144 + 40 + 48);
}

TEST(ProgramTraffic, CountsSumsInSharedMemoryApart) {
  const ProgramTraffic traffic = traffic_of(load_golden("dp3_ordered")[1]);
  EXPECT_EQ(traffic.shared_memory_bytes, 128 + 64 + 128);
  EXPECT_EQ(traffic.sent_bytes, 2 * 80) << "the agreement alone";
}

TEST(ProgramTraffic, IsNothingAlone) { EXPECT_EQ(sent("dp1_tree", 0), 0); }

}  // namespace
}  // namespace lockstep::program
