#include "program/ring_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace lockstep::program {
namespace {

using testing::ElementsAre;

/// By round, what each rank does, as "send>receive".
std::vector<std::string> table(RingPass pass, int ranks) {
  std::vector<std::string> rows;
  for (int round = 0; round + 1 < ranks; ++round) {
    std::string& row = rows.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      const RingRound blocks = ring_round(pass, rank, ranks, round);
      row += (rank == 0 ? "" : " ") + std::to_string(blocks.send) + ">" + std::to_string(blocks.receive);
    }
  }
  return rows;
}

TEST(RingSchedule, ReduceScatterOfTwoThreeAndFour) {
  EXPECT_THAT(table(RingPass::reduce_scatter, 2), ElementsAre("1>0 0>1"));
  EXPECT_THAT(table(RingPass::reduce_scatter, 3), ElementsAre("2>1 0>2 1>0", "1>0 2>1 0>2"));
  EXPECT_THAT(table(RingPass::reduce_scatter, 4),
              ElementsAre("3>2 0>3 1>0 2>1", "2>1 3>2 0>3 1>0", "1>0 2>1 3>2 0>3"));
}

TEST(RingSchedule, AllGatherOfTwoThreeAndFour) {
  EXPECT_THAT(table(RingPass::all_gather, 2), ElementsAre("0>1 1>0"));
  EXPECT_THAT(table(RingPass::all_gather, 3), ElementsAre("0>2 1>0 2>1", "2>1 0>2 1>0"));
  EXPECT_THAT(table(RingPass::all_gather, 4),
              ElementsAre("0>3 1>0 2>1 3>2", "3>2 0>3 1>0 2>1", "2>1 3>2 0>3 1>0"));
}

TEST(RingSchedule, AloneHasNoRounds) {
  EXPECT_THAT(table(RingPass::reduce_scatter, 1), ElementsAre());
  EXPECT_THAT(table(RingPass::all_gather, 1), ElementsAre());
}

/// What each rank holds of each block: whose contributions were added, in their order.
using Held = std::vector<std::vector<std::vector<int>>>;

/// All rounds of a pass, with the ranks in step.
void go_around(RingPass pass, Held& held) {
  const int ranks = static_cast<int>(held.size());
  for (int round = 0; round + 1 < ranks; ++round) {
    const Held before = held;
    for (int rank = 0; rank < ranks; ++rank) {
      const int previous = (rank + ranks - 1) % ranks;
      const int block = ring_round(pass, rank, ranks, round).receive;
      ASSERT_EQ(block, ring_round(pass, previous, ranks, round).send) << "what is sent is received";
      const auto b = static_cast<size_t>(block);
      const auto& received = before[static_cast<size_t>(previous)][b];
      auto& own = held[static_cast<size_t>(rank)][b];
      if (pass == RingPass::all_gather) own.clear();
      std::vector<int> sum = received;
      sum.insert(sum.end(), own.begin(), own.end());
      own = sum;
    }
  }
}

TEST(RingSchedule, AddsEachContributionOnceAndEndsWithTheOwner) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    Held held(static_cast<size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank)
      held[static_cast<size_t>(rank)].assign(static_cast<size_t>(ranks), {rank});
    go_around(RingPass::reduce_scatter, held);
    for (int owner = 0; owner < ranks; ++owner) {
      std::vector<int> expected;  // from the rank after the owner around to it
      for (int i = 1; i <= ranks; ++i) expected.push_back((owner + i) % ranks);
      EXPECT_EQ(held[static_cast<size_t>(owner)][static_cast<size_t>(owner)], expected) << ranks << " ranks";
    }
  }
}

TEST(RingSchedule, GathersEveryBlockFromItsOwner) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    Held held(static_cast<size_t>(ranks), std::vector<std::vector<int>>(static_cast<size_t>(ranks)));
    for (int rank = 0; rank < ranks; ++rank)
      held[static_cast<size_t>(rank)][static_cast<size_t>(rank)] = {rank};
    go_around(RingPass::all_gather, held);
    for (const auto& blocks : held)
      for (int owner = 0; owner < ranks; ++owner)
        EXPECT_EQ(blocks[static_cast<size_t>(owner)], std::vector<int>{owner}) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace lockstep::program
