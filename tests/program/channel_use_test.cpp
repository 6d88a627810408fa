#include "program/channel_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "program/golden_programs.h"

namespace lockstep::program {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// By the name of the group of a program's first instruction of a kind.
ChannelUse use_of(const Program& program, InstructionKind kind) {
  for (const Instruction& instruction : program.instructions)
    if (instruction.kind == kind) return channel_use(program, program.group(instruction.group).name);
  ADD_FAILURE() << "no " << name_of(kind);
  return {};
}

TEST(ChannelUse, NamesPartnersOfExchanges) {
  const auto programs = load_golden("dp2_tree");
  for (int rank : {0, 1}) {
    const ChannelUse use = use_of(programs[static_cast<size_t>(rank)], InstructionKind::exchange);
    EXPECT_THAT(use.sends_to, ElementsAre(1 - rank));
    EXPECT_THAT(use.receives_from, ElementsAre(1 - rank));
  }
}

TEST(ChannelUse, NamesNeighboursInRings) {
  const ChannelUse use = use_of(load_golden("dp2_ring")[1], InstructionKind::ring_reduce_scatter);
  EXPECT_THAT(use.sends_to, ElementsAre(0));
  EXPECT_THAT(use.receives_from, ElementsAre(0));
}

TEST(ChannelUse, KnowsWhatElseIsDone) {
  const ChannelUse use = use_of(load_golden("dp2_fast")[0], InstructionKind::all_reduce);
  EXPECT_THAT(use.sends_to, IsEmpty());
  EXPECT_FALSE(use.only_exchanges);
}

TEST(ChannelUse, OfAStageIsOneDirection) {
  const auto programs = load_golden("pp2_1f1b");
  ChannelUse all;
  for (const Group& group : programs[0].groups) {
    const ChannelUse use = channel_use(programs[0], group.name);
    if (use.only_exchanges && !use.sends_to.empty()) EXPECT_TRUE(use.receives_from.empty());
    all.add(use);
  }
  EXPECT_FALSE(all.sends_to.empty());
  EXPECT_FALSE(all.receives_from.empty());
  EXPECT_FALSE(all.only_exchanges) << "they agree, too";
}

}  // namespace
}  // namespace lockstep::program
