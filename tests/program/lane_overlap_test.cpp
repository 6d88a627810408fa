#include "program/lane_overlap.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "program/memory/memory_plan.h"

namespace lockstep::program {
namespace {

using ::testing::ElementsAre;

std::vector<int> independent(const std::string& instructions) {
  Program program = program_from_text(
      "program step rank=0 world_size=2 reduction=fast leaves=2 micro_batches_per_leaf=1\n"
      "lane one comm\n"
      "lane two comm\n"
      "group all 0 1\n"
      "buffer a space=gradients category=gradients size=512\n"
      "buffer b space=gradients category=gradients size=512\n" +
      instructions);
  plan_memory(program);
  return independent_predecessors(program);
}

TEST(LaneOverlap, IsOfExchangesThatLeaveEachOthersBytesAlone) {
  EXPECT_THAT(independent("0 exchange @one group=all reads send:a@1\n"
                          "1 exchange @one group=all reads send:b@1\n"
                          "2 exchange @one group=all writes receive:a@1\n"  // behind a send of b
                          "3 exchange @one group=all reads send:a@1\n"      // of what has just come
                          "4 exchange @one group=all reads send:a@1\n"),    // both read it
              ElementsAre(0, 1, 1, 0, 1));
  EXPECT_THAT(independent("0 exchange @one group=all writes receive:a[0+256]@1\n"
                          "1 exchange @one group=all writes receive:a[256+256]@1\n"
                          "2 exchange @one group=all reads send:a[128+256]@1\n"),
              ElementsAre(0, 1, 0));
}

TEST(LaneOverlap, IsOfSoManyAtMost) {
  std::string instructions;
  std::vector<int> expected;
  for (int i = 0; i < kMostExchangesUnderWay + 2; ++i) {
    instructions += fmt::format("{} exchange @one group=all reads send:a@1\n", i);
    expected.push_back(std::min(i, kMostExchangesUnderWay - 1));
  }
  EXPECT_EQ(independent(instructions), expected);
}

TEST(LaneOverlap, IsWithinALane) {
  EXPECT_THAT(independent("0 exchange @one group=all reads send:a@1\n"
                          "1 exchange @two group=all writes receive:b@1\n"
                          "2 exchange @one group=all reads send:a@1\n"
                          "3 exchange @two group=all writes receive:b@1\n"),
              ElementsAre(0, 0, 1, 0));
}

TEST(LaneOverlap, IsOfNothingElseThanExchanges) {
  EXPECT_THAT(independent("0 all_reduce @one group=all updates data:a\n"
                          "1 exchange @one group=all reads send:b@1\n"
                          "2 all_reduce @one group=all updates data:a\n"),
              ElementsAre(0, 0, 0));
}

}  // namespace
}  // namespace lockstep::program
