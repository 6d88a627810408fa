// What the checker proves of a ring that is one instruction.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mentions.h"
#include "program/golden_programs.h"
#include "proof/mutations.h"

namespace lockstep::proof {
namespace {

using Property = CheckFinding::Property;
using program::InstructionKind;

constexpr InstructionKind kBoth[] = {InstructionKind::ring_reduce_scatter, InstructionKind::ring_all_gather};

bool is_ring(const program::Instruction& i) { return !i.blocks.empty(); }

Programs ring_golden() { return program::load_golden("dp2_ring"); }

void expect_caught_in_ring(const std::vector<Mutant>& mutants, const std::vector<Property>& reasons,
                           size_t least) {
  EXPECT_GE(mutants.size(), least);
  for (const Mutant& mutant : mutants) {
    const auto findings = check_programs(mutant.programs);
    bool caught = false;
    for (const Property reason : reasons) caught = caught || program::has(findings, reason);
    EXPECT_TRUE(caught) << mutant.what << "\nfound:\n" << program::text_of(findings);
  }
}

struct Change {
  const char* what;
  std::function<bool(program::Blocks&)> make;  ///< false where they do not have it
};

/// Blocks that are as sound as those before, and others.
const std::vector<Change>& changes() {
  static const std::vector<Change> all{
      {"the owners the other way around",
       [](program::Blocks& blocks) {
         for (program::BlockRun& run : blocks) run.owner = 1 - run.owner;
         return true;
       }},
      {"the first block of another rank",
       [](program::Blocks& blocks) {
         blocks[0].owner = 1 - blocks[0].owner;
         return blocks.size() > 1;
       }},
      {"a border 4 bytes earlier",
       [](program::Blocks& blocks) {
         if (blocks.size() == 1) return false;
         blocks[0].end -= 4;
         blocks[0].each = blocks[0].end - blocks[0].begin;
         blocks[1].begin -= 4;
         blocks[1].each += 4;
         return true;
       }},
      {"pieces 4 bytes larger",
       [](program::Blocks& blocks) {
         if (blocks[0].pieces() == 1) return false;
         blocks[0].each += 4;
         return true;
       }},
      {"the first 16 bytes in no block",
       [](program::Blocks& blocks) {
         blocks.front().begin += 16;
         return true;
       }},
      {"the last of them missing",
       [](program::Blocks& blocks) {
         blocks.pop_back();
         return !blocks.empty();
       }},
      {"in one piece of one rank",
       [](program::Blocks& blocks) {
         blocks = {{0, blocks.back().end, blocks.back().end, 1}};
         return true;
       }},
  };
  return all;
}

/// Blocks that grow need more room, which has nothing to do with whether they are the right ones.
void give_room(Programs& programs) {
  for (program::Program& program : programs)
    for (program::ProgramBuffer& buffer : program.buffers)
      if (buffer.name.starts_with("receive")) buffer.size_bytes = 128;
  for (program::Program& program : programs)
    for (program::Instruction& i : program.instructions)
      for (program::Operand& o : i.operands)
        if (o.role == program::Role::temporary && is_ring(i)) o.range.size_bytes = 128;
}

TEST(RingProof, TheGoldenWithMoreRoomIsRight) {
  Programs programs = ring_golden();
  give_room(programs);
  EXPECT_EQ(program::text_of(check_programs(programs)), "");
}

TEST(RingProof, MembersThatStateOtherBlocksDoNotMatch) {
  Programs programs = ring_golden();
  give_room(programs);
  for (const Change& change : changes())
    expect_caught_in_ring(with_each(programs, change.what,
                                    [&](const program::Program&, program::Instruction& i) {
                                      return is_ring(i) && change.make(i.blocks);
                                    }),
                          {Property::matching}, 4);
}

TEST(RingProof, SumsThatAreGatheredInOtherBlocksAreWrong) {
  Programs programs = ring_golden();
  give_room(programs);
  for (const InstructionKind kind : kBoth)
    for (const Change& change : changes())
      expect_caught_in_ring(
          with_each_collective(programs, kind, change.what,
                               [&](program::Instruction& i) { return change.make(i.blocks); }),
          {Property::mathematics}, 1);
}

TEST(RingProof, ASumInBlocksOfAllRanksTogetherIsRight) {
  Programs programs = ring_golden();
  give_room(programs);
  for (program::Program& program : programs)
    for (program::Instruction& i : program.instructions)
      if (is_ring(i)) changes()[0].make(i.blocks);
  EXPECT_EQ(program::text_of(check_programs(programs)), "");
}

TEST(RingProof, WhatIsLeftOfOtherRanksBlocksIsNoGradient) {
  Programs programs = ring_golden();
  for (program::Program& program : programs) {
    std::vector<program::Instruction>& list = program.instructions;
    program::Instruction& gather = *std::find_if(list.begin(), list.end(), [](const program::Instruction& i) {
      return i.kind == InstructionKind::ring_all_gather;
    });
    gather.kind = InstructionKind::exchange;  // of nothing
    gather.blocks.clear();
    gather.operands.clear();
  }
  EXPECT_THAT(program::text_of(check_programs(programs)),
              Mentions("part of a sum ... ring ... other ranks' blocks"));
}

TEST(RingProof, OnlyOneOfTheTwoPassesOnOneRankDoesNotMatch) {
  expect_caught_in_ring(
      with_each(ring_golden(), "the other pass",
                [](const program::Program& program, program::Instruction& i) {
                  if (i.kind != InstructionKind::ring_all_gather) return false;
                  const auto other = std::ranges::find_if(program.instructions, [&](const auto& one) {
                    return one.kind == InstructionKind::ring_reduce_scatter && one.segment == i.segment;
                  });
                  i.kind = other->kind;
                  i.operands = other->operands;
                  return true;
                }),
      {Property::matching}, 6);
}

TEST(RingProof, BlocksThatAreNoneAreStructure) {
  const std::vector<Change> unsound{
      {"no blocks",
       [](program::Blocks& blocks) {
         blocks.clear();
         return true;
       }},
      {"beyond the end",
       [](program::Blocks& blocks) {
         blocks.back().end += 4;
         return true;
       }},
      {"of nobody",
       [](program::Blocks& blocks) {
         blocks.front().owner = 2;
         return true;
       }},
      {"more than the ranks",
       [](program::Blocks& blocks) {
         blocks.front().each = (blocks.front().end - blocks.front().begin) / 4;
         return true;
       }},
  };
  for (const Change& change : unsound)
    expect_caught_in_ring(with_each(ring_golden(), change.what,
                                    [&](const program::Program&, program::Instruction& i) {
                                      return is_ring(i) && change.make(i.blocks);
                                    }),
                          {Property::structure}, 12);
}

TEST(RingProof, AnyNumbersInATextAreRefused) {
  for (const char* blocks : {"9223372036854775807+9223372036854775807@0", "0+64/9223372036854775807@2",
                             "-64+128/0@0", "0+64/-1@1", "0+0@0"}) {
    std::string text = program::golden_text("dp2_ring");
    const std::string known = "blocks=0+64/32@1";
    text.replace(text.find(known), known.size(), std::string("blocks=") + blocks);
    const Programs programs = program::programs_from_text(text);
    EXPECT_THAT(program::to_text(programs[0]), testing::HasSubstr(std::string("blocks=") + blocks + " "));
    EXPECT_TRUE(program::has(check_programs(programs), Property::structure)) << blocks;
  }
}

TEST(RingProof, SumsAreOfWholeElements) {
  expect_caught_in_ring(with_each(ring_golden(), "2 bytes shorter",
                                  [](const program::Program&, program::Instruction& i) {
                                    if (i.kind != InstructionKind::ring_reduce_scatter) return false;
                                    i.blocks.back().end -= 2;
                                    return true;
                                  }),
                        {Property::structure}, 6);
}

TEST(RingProof, BlocksOfAnythingElseAreStructure) {
  expect_caught_in_ring(with_each(ring_golden(), "with blocks",
                                  [](const program::Program&, program::Instruction& i) {
                                    if (is_ring(i)) return false;
                                    i.blocks = {{0, 4, 4, 0}};
                                    return true;
                                  }),
                        {Property::structure}, 30);
}

TEST(RingProof, ScratchHasRoomForTheLargestBlock) {
  const auto mutants =
      with_each_operand(ring_golden(), "4 bytes smaller",
                        [](const program::Program&, const program::Instruction& i, program::Operand& o) {
                          o.range.size_bytes -= 4;
                          return is_ring(i) && o.role == program::Role::temporary;
                        });
  expect_caught_in_ring(mutants, {Property::structure}, 6);
  EXPECT_THAT(program::text_of(check_programs(mutants.front().programs)), Mentions("32 bytes ... 28"));
}

TEST(RingProof, AnotherGroupIsCaught) {
  expect_caught_in_ring(with_each(ring_golden(), "another group",
                                  [](const program::Program&, program::Instruction& i) {
                                    i.group = 0;
                                    return is_ring(i);
                                  }),
                        {Property::structure}, 12);
}

TEST(RingProof, WhatScratchHoldsAfterwardsIsNotDefined) {
  Programs programs = ring_golden();
  program::Program& program = programs[0];
  program::Instruction add;
  add.kind = InstructionKind::add;
  add.lane = 3;
  int ring = 0;
  while (!is_ring(program.instruction(ring))) ++ring;
  const auto& operands = program.instruction(ring).operands;
  add.operands = {
      {program::Role::destination, 0, program::Access::read_write, {operands[0].range.buffer, 0, 32}},
      {program::Role::source, 0, program::Access::read, operands[1].range}};
  for (program::Instruction& i : program.instructions)
    for (program::Dependency& d : i.after) d.instruction += d.instruction > ring ? 1 : 0;
  program.instructions.insert(program.instructions.begin() + ring + 1, add);
  EXPECT_THAT(program::text_of(check_programs(programs)), testing::HasSubstr("as scratch"));
}

}  // namespace
}  // namespace lockstep::proof
