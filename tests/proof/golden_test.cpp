#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program/golden_programs.h"
#include "program/memory/memory_plan.h"

namespace lockstep::proof {
namespace {

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, IsAccepted) {
  EXPECT_EQ(program::text_of(check_programs(program::load_golden(GetParam()))), "");
}

TEST_P(Golden, IsAcceptedWhenPlaced) {
  auto programs = program::load_golden(GetParam());
  for (program::Program& program : programs) program::plan_memory(program);
  EXPECT_EQ(program::text_of(check_programs(programs)), "");
}

TEST_P(Golden, SurvivesTheTripThroughText) {
  for (const program::Program& program : program::load_golden(GetParam())) {
    const program::Program again = program::program_from_text(program::to_text(program));
    EXPECT_TRUE(again == program);
    EXPECT_EQ(program::to_text(again), program::to_text(program));
  }
}

TEST_P(Golden, DeclaresTheDependenciesThatProgramOrderImplies) {
  for (const program::Program& program : program::load_golden(GetParam())) {
    program::Program bare = program;
    for (program::Instruction& instruction : bare.instructions) instruction.after.clear();
    program::derive_dependencies(bare);
    EXPECT_EQ(program::to_text(bare), program::to_text(program));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Golden, testing::ValuesIn(program::golden_names()),
                         [](const auto& info) { return info.param; });

TEST(Goldens, AreAllThere) {
  EXPECT_THAT(program::golden_names(),
              testing::ElementsAre("dp1_tree", "dp2_boundary", "dp2_evaluate", "dp2_fast", "dp2_feedback",
                                   "dp2_fp16", "dp2_lamb", "dp2_muon", "dp2_ring", "dp2_sharded", "dp2_tree",
                                   "dp2_wire", "dp3_ordered", "pp2_1f1b", "pp2_interleaved",
                                   "pp2_zero_bubble", "ps_async", "ps_stale", "ps_sync"));
}

}  // namespace
}  // namespace lockstep::proof
