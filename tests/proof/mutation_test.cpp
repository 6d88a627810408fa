// Broken programs that the checker refuses: instructions, their order, and whom they talk to.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "mentions.h"
#include "program/golden_programs.h"
#include "program/memory/memory_plan.h"
#include "proof/every_mutant.h"

namespace lockstep::proof {
namespace {

using Property = CheckFinding::Property;

TEST(Mutation, RemovingAnyDependencyThatMattersIsADataFinding) {
  expect_all_caught(without_a_dependency, {Property::data}, 150);
}

TEST(Mutation, RemovingAnyDependencyThatMattersIsADataFindingWhenPlaced) {
  expect_all_caught(
      [](Programs programs) {
        for (program::Program& program : programs) program::plan_memory(program);
        return without_a_dependency(programs);
      },
      {Property::data}, 150);
}

TEST(Mutation, DroppingAnyInstructionIsCaught) {
  expect_all_caught(without_an_instruction,
                    {Property::matching, Property::deadlock, Property::data, Property::mathematics}, 250);
}

TEST(Mutation, DroppingAnAddIsMathematics) {
  expect_all_caught(
      [](const Programs& programs) {
        auto mutants = without_an_instruction(programs);
        std::erase_if(mutants, [](const Mutant& m) { return m.what.find("(add,") == std::string::npos; });
        return mutants;
      },
      {Property::mathematics}, 16);
}

TEST(Mutation, RepeatingAnAddIsMathematics) {
  expect_all_caught([](const Programs& p) { return with_a_repeated(p, program::InstructionKind::add); },
                    {Property::mathematics}, 16);
}

TEST(Mutation, RepeatingAnUpdateIsMathematics) {
  expect_all_caught([](const Programs& p) { return with_a_repeated(p, program::InstructionKind::update); },
                    {Property::mathematics}, 20);
}

TEST(Mutation, RepeatingAnAccumulatingBackwardIsMathematics) {
  expect_all_caught(
      [](const Programs& p) {
        auto mutants = with_a_repeated(p, program::InstructionKind::backward);
        std::erase_if(mutants, [](const Mutant& m) {
          for (const program::Program& program : m.programs)
            for (size_t i = 0; i + 1 < program.instructions.size(); ++i)
              if (program.instructions[i].operands == program.instructions[i + 1].operands &&
                  program.instructions[i].kind == program::InstructionKind::backward)
                return !program.instructions[i].accumulate;
          return true;
        });
        return mutants;
      },
      {Property::mathematics}, 15);
}

TEST(Mutation, RepeatingAReductionIsCaught) {
  for (program::InstructionKind kind :
       {program::InstructionKind::all_reduce, program::InstructionKind::ring_reduce_scatter,
        program::InstructionKind::ring_all_gather, program::InstructionKind::exchange,
        program::InstructionKind::agree, program::InstructionKind::push})
    expect_all_caught([kind](const Programs& p) { return with_a_repeated(p, kind); }, {Property::matching}, 4,
                      is_alone);
}

TEST(Mutation, SwappingTwoCommunicationsIsCaught) {
  expect_all_caught(
      with_swapped_communications,
      {Property::matching, Property::deadlock, Property::data, Property::mathematics, Property::structure},
      70);
}

TEST(Mutation, AnythingButACastThatIsMadeOnceIsStructure) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each(programs, "anew", [](const program::Program&, program::Instruction& i) {
          i.anew = true;
          return i.kind != program::InstructionKind::cast;
        });
      },
      {Property::structure}, 250);
}

TEST(Mutation, ChangingAPeerIsCaught) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each_operand(
            programs, "with another peer",
            [](const program::Program& p, const program::Instruction& i, program::Operand& o) {
              if (o.peer < 0) return false;
              o.peer = (o.peer + 1) % static_cast<int>(p.groups[static_cast<size_t>(i.group)].members.size());
              return true;
            });
      },
      {Property::structure, Property::matching}, 60);
}

TEST(Mutation, StatingAnOrderOfSumsOnOneRankAloneIsAMatchingFinding) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each(programs, "order turned over", [](const program::Program&, program::Instruction& i) {
          i.ordered = !i.ordered;
          return i.kind == program::InstructionKind::all_reduce;
        });
      },
      {Property::matching}, 15, is_alone);
}

TEST(Mutation, LeavingTheOrderOfSumsToTheLibraryIsMathematics) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each_collective(programs, program::InstructionKind::all_reduce, "in the library's order",
                                    [](program::Instruction& i) { return std::exchange(i.ordered, false); });
      },
      {Property::mathematics}, 3);
}

TEST(Mutation, AnOrderWithoutSharedMemoryIsAMatchingFinding) {
  Programs programs = program::load_golden("dp3_ordered");
  for (program::Program& program : programs)
    for (program::Group& group : program.groups) group.transport = program::Transport::host;
  EXPECT_THAT(program::text_of(check_programs(programs)),
              Mentions("matching: rank 0, step instruction 15 (all_reduce, lane reduce, segment 2): "
                       "it is ordered ... 'reducers' is 'host'"));
}

TEST(Mutation, AnOrderOfAnythingButASumIsStructure) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each(programs, "ordered", [](const program::Program&, program::Instruction& i) {
          i.ordered = true;
          return i.kind != program::InstructionKind::all_reduce;
        });
      },
      {Property::structure}, 250);
}

TEST(Mutation, AnotherTransportOnOneRankAloneIsStructure) {
  expect_all_caught(
      [](const Programs& programs) {
        std::vector<Mutant> mutants;
        for (size_t r = 0; r < programs.size(); ++r)
          for (size_t g = 0; g < programs[r].groups.size(); ++g)
            for (int other = 1; other < program::kTransportCount; ++other) {
              mutants.push_back(
                  {fmt::format("rank {}: another transport of group {}", r, programs[r].groups[g].name),
                   programs});
              auto& transport = mutants.back().programs[r].groups[g].transport;
              transport = static_cast<program::Transport>((static_cast<int>(transport) + other) %
                                                          program::kTransportCount);
            }
        return mutants;
      },
      {Property::structure}, 40, is_alone);
}

TEST(Mutation, SendingBeforeReceivingOnBothSidesIsADeadlock) {
  expect_all_caught(with_sends_before_receives, {Property::deadlock}, 4);
}

TEST(Mutation, DependingOnALaterInstructionIsStructure) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each(programs, "waits for itself",
                         [](const program::Program& p, program::Instruction& i) {
                           i.after.push_back({static_cast<int>(p.instructions.size()) - 1, 0});
                           return true;
                         });
      },
      {Property::structure}, 250);
}

TEST(Mutation, RunningOnAnotherKindOfLaneIsStructure) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each(programs, "on another lane", [](const program::Program& p, program::Instruction& i) {
          const bool on_comm = p.lanes[static_cast<size_t>(i.lane)].kind == program::LaneKind::comm;
          if (i.kind == program::InstructionKind::add || i.kind == program::InstructionKind::cast)
            return false;
          for (size_t lane = 0; lane < p.lanes.size(); ++lane)
            if ((p.lanes[lane].kind == program::LaneKind::comm) != on_comm) {
              i.lane = static_cast<int>(lane);
              return true;
            }
          return false;
        });
      },
      {Property::structure}, 250);
}

}  // namespace
}  // namespace lockstep::proof
