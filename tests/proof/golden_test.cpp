#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program/golden_programs.h"
#include "program/memory/memory_plan.h"

namespace lockstep {
namespace {

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, IsAccepted) { EXPECT_EQ(text_of(check_programs(load_golden(GetParam()))), ""); }

TEST_P(Golden, IsAcceptedWhenPlaced) {
  auto programs = load_golden(GetParam());
  for (Program& program : programs) plan_memory(program);
  EXPECT_EQ(text_of(check_programs(programs)), "");
}

TEST_P(Golden, SurvivesTheTripThroughText) {
  for (const Program& program : load_golden(GetParam())) {
    const Program again = program_from_text(to_text(program));
    EXPECT_TRUE(again == program);
    EXPECT_EQ(to_text(again), to_text(program));
  }
}

TEST_P(Golden, DeclaresTheDependenciesThatProgramOrderImplies) {
  for (const Program& program : load_golden(GetParam())) {
    Program bare = program;
    for (Instruction& instruction : bare.instructions) instruction.after.clear();
    derive_dependencies(bare);
    EXPECT_EQ(to_text(bare), to_text(program));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Golden, testing::ValuesIn(golden_names()),
                         [](const auto& info) { return info.param; });

TEST(Goldens, AreAllThere) {
  EXPECT_THAT(golden_names(),
              testing::ElementsAre("dp1_tree", "dp2_boundary", "dp2_evaluate", "dp2_fast", "dp2_fp16",
                                   "dp2_sharded", "dp2_tree", "dp3_ordered", "pp2_1f1b", "pp2_interleaved",
                                   "pp2_zero_bubble", "ps_async", "ps_boundary", "ps_stale", "ps_sync"));
}

}  // namespace
}  // namespace lockstep
