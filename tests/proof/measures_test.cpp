// Programs that scale updates by norms of parameters and updates, broken in ways that only these have.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "program/golden_programs.h"
#include "proof/mutations.h"

namespace lockstep::proof {
namespace {

using Property = CheckFinding::Property;
using program::Access;
using program::InstructionKind;
using program::Operand;
using program::Role;

Programs lamb() { return program::load_golden("dp2_lamb"); }

void expect_caught_by_measures(const std::vector<Mutant>& mutants, Property reason, size_t count) {
  EXPECT_EQ(mutants.size(), count);
  for (const Mutant& mutant : mutants) {
    const auto findings = check_programs(mutant.programs);
    EXPECT_TRUE(program::has(findings, reason)) << mutant.what << "\nfound:\n" << program::text_of(findings);
  }
}

/// Operands of one kind of instruction, each changed by itself.
std::vector<Mutant> with_operands(InstructionKind kind, const std::string& what,
                                  const std::function<bool(Operand&)>& change) {
  return with_each_operand(lamb(), what,
                           [&](const program::Program&, const program::Instruction& i, Operand& o) {
                             return i.kind == kind && change(o);
                           });
}

/// Operands of one kind of instruction, each left out by itself.
std::vector<Mutant> without_operands(InstructionKind kind, const std::function<bool(const Operand&)>& which) {
  std::vector<Mutant> mutants;
  const Programs whole = lamb();
  for (size_t r = 0; r < whole.size(); ++r)
    for (size_t i = 0; i < whole[r].instructions.size(); ++i) {
      const auto& operands = whole[r].instructions[i].operands;
      for (size_t o = 0; whole[r].instructions[i].kind == kind && o < operands.size(); ++o) {
        if (!which(operands[o])) continue;
        Mutant mutant{fmt::format("rank {}, instruction {} without operand {}", r, i, o), whole};
        auto& changed = mutant.programs[r].instructions[i].operands;
        changed.erase(changed.begin() + static_cast<std::ptrdiff_t>(o));
        mutants.push_back(std::move(mutant));
      }
    }
  return mutants;
}

TEST(Measures, OfTheGoldenAreProven) { EXPECT_EQ(program::text_of(check_programs(lamb())), ""); }

TEST(Measures, LeaveOutNoParameter) {
  const auto is_measured = [](const Operand& o) { return o.role == Role::parameters; };
  expect_caught_by_measures(without_operands(InstructionKind::norm, is_measured), Property::mathematics, 4);
  expect_caught_by_measures(without_operands(InstructionKind::propose, is_measured), Property::structure, 4);
}

TEST(Measures, AreInTheirPlaces) {
  for (const int64_t shift : {-262144, -4, 4, 262144}) {
    const auto moved = [shift](Operand& o) {
      o.position += shift;
      return o.role == Role::parameters;
    };
    for (const Mutant& mutant :
         with_operands(InstructionKind::norm, fmt::format("{} bytes on", shift), moved)) {
      const auto findings = check_programs(mutant.programs);
      EXPECT_TRUE(program::has(findings, Property::mathematics) ||
                  program::has(findings, Property::structure))
          << mutant.what;
    }
  }
  // The other half of a bucket, taken for the own one.
  expect_caught_by_measures(with_operands(InstructionKind::norm, "of the other half",
                                          [](Operand& o) {
                                            o.range.offset = 262144 - o.range.offset;
                                            return o.role == Role::parameters;
                                          }),
                            Property::mathematics, 4);
}

TEST(Measures, OfGradientsParametersAndUpdatesAreNotMixedUp) {
  // Scales from sums of other things.
  for (const auto& [one, other] : {std::pair(0, 1), std::pair(0, 2), std::pair(1, 2)})
    expect_caught_by_measures(
        with_each(lamb(), fmt::format("chunks {} and {} exchanged", one, other),
                  [one = one, other = other](const program::Program&, program::Instruction& i) {
                    if (i.kind != InstructionKind::ratios) return false;
                    for (Operand& o : i.operands)
                      if (o.role == Role::chunks)
                        o.index = o.index == one ? other : o.index == other ? one : o.index;
                    return true;
                  }),
        Property::mathematics, 2);
  // A norm of parameters.
  expect_caught_by_measures(with_each(lamb(), "folds sums of parameters",
                                      [](const program::Program&, program::Instruction& i) {
                                        if (i.kind != InstructionKind::norm) return false;
                                        for (Operand& o : i.operands)
                                          if (o.role == Role::chunks && o.access == Access::read) {
                                            o.range.offset = 40;
                                            return true;
                                          }
                                        return false;
                                      }),
                            Property::mathematics, 2);
}

TEST(Measures, AreOfAllRanks) {
  // One rank makes its scales before the others' sums have come.
  for (const int earlier : {9, 12}) {
    Programs programs = lamb();
    for (program::Program& program : programs) {
      program::Instruction sum = program.instructions[static_cast<size_t>(earlier) + 1];
      ASSERT_EQ(sum.kind, InstructionKind::all_reduce);
      program.instructions.erase(program.instructions.begin() + earlier + 1);
      const auto ratios =
          std::ranges::find(program.instructions, InstructionKind::ratios, &program::Instruction::kind);
      program.instructions.insert(ratios + 1, std::move(sum));
      for (program::Instruction& i : program.instructions) i.after.clear();
      program::derive_dependencies(program);
    }
    EXPECT_TRUE(program::has(check_programs(programs), Property::mathematics)) << earlier;
  }
}

TEST(Scales, AreReadByAllUpdatesOrNone) {
  const auto is_scale = [](const Operand& o) { return o.role == Role::scales; };
  expect_caught_by_measures(without_operands(InstructionKind::update, is_scale), Property::mathematics, 4);
  expect_caught_by_measures(with_operands(InstructionKind::update, "of two parameters",
                                          [](Operand& o) {
                                            o.range.size_bytes -= 8;
                                            return o.role == Role::scales;
                                          }),
                            Property::structure, 4);
}

TEST(Scales, FollowFromAllSums) {
  const auto is_sum = [](const Operand& o) { return o.role == Role::chunks; };
  expect_caught_by_measures(without_operands(InstructionKind::ratios, is_sum), Property::mathematics, 6);
  // All ranks alike: plain Adam, since the norm of the update would be 0.
  for (int measured = 0; measured < 3; ++measured) {
    Programs programs = lamb();
    for (program::Program& program : programs)
      for (program::Instruction& i : program.instructions)
        if (i.kind == InstructionKind::ratios)
          std::erase_if(i.operands, [&](const Operand& o) { return is_sum(o) && o.index == measured; });
    EXPECT_TRUE(program::has(check_programs(programs), Property::mathematics)) << measured;
  }
}

TEST(Sums, AreMadeByTheInstructionsThatMakeThem) {
  // A norm knows nothing of updates, a proposal of nothing else, and there is no fourth list.
  for (const int measured : {2, 7, -1})
    expect_caught_by_measures(with_operands(InstructionKind::norm, fmt::format("writes chunks.{}", measured),
                                            [measured](Operand& o) {
                                              if (o.role != Role::chunks || o.index != 1) return false;
                                              o.index = measured;
                                              return true;
                                            }),
                              Property::structure, 2);
  for (const int measured : {0, 1, 3})
    expect_caught_by_measures(
        with_operands(InstructionKind::propose, fmt::format("writes chunks.{}", measured),
                      [measured](Operand& o) {
                        o.index = o.role == Role::chunks ? measured : o.index;
                        return o.role == Role::chunks;
                      }),
        Property::structure, 2);
}

TEST(Sums, OfSeveralRanksAreOfTheSameList) {
  // One rank adds its sums of parameters to the others' of gradients.
  Programs programs = lamb();
  for (program::Instruction& i : programs[1].instructions)
    if (i.kind == InstructionKind::norm)
      for (Operand& o : i.operands)
        if (o.role == Role::chunks && o.access == Access::write) o.range.offset = 40 - o.range.offset;
  EXPECT_TRUE(program::has(check_programs(programs), Property::mathematics));
}

TEST(Scales, FollowFromWhatUpdatesObey) {
  const auto obeys = [](const Operand& o) {
    return (o.role == Role::verdict && o.index == 1) || o.role == Role::predicate;
  };
  expect_caught_by_measures(without_operands(InstructionKind::propose, obeys), Property::mathematics, 4);
  expect_caught_by_measures(without_operands(InstructionKind::ratios, obeys), Property::mathematics, 2);
}

TEST(Proposals, MoveTheStateOfTheirParameters) {
  expect_caught_by_measures(with_each(lamb(), "states exchanged",
                                      [](const program::Program&, program::Instruction& i) {
                                        if (i.kind != InstructionKind::propose) return false;
                                        for (Operand& o : i.operands)
                                          if (o.role == Role::state) o.index = 1 - o.index;
                                        return true;
                                      }),
                            Property::mathematics, 2);
  // Half of the slots, or of the elements.
  expect_caught_by_measures(with_operands(InstructionKind::propose, "one slot",
                                          [](Operand& o) {
                                            o.range.size_bytes /= 2;
                                            return o.role == Role::state;
                                          }),
                            Property::mathematics, 4);
  expect_caught_by_measures(with_operands(InstructionKind::propose, "some elements",
                                          [](Operand& o) {
                                            o.range.size_bytes -= 64;
                                            return o.role == Role::state;
                                          }),
                            Property::structure, 4);
}

TEST(Proposals, ComeOnceBeforeUpdates) {
  expect_caught_by_measures(with_a_repeated(lamb(), InstructionKind::propose), Property::mathematics, 2);
  // An update that moves the state itself would do so a second time.
  expect_caught_by_measures(with_operands(InstructionKind::update, "moved again",
                                          [](Operand& o) {
                                            o.access = Access::read_write;
                                            return o.role == Role::state;
                                          }),
                            Property::mathematics, 8);
}

TEST(Proposals, TakeCompleteGradients) {
  Programs programs = lamb();
  for (program::Program& program : programs)
    for (program::Instruction& i : program.instructions)
      if (i.kind == InstructionKind::propose)
        for (Operand& o : i.operands)
          if (o.role == Role::gradients) o.range.offset = 262144 - o.range.offset;  // the other rank's
  EXPECT_TRUE(program::has(check_programs(programs), Property::mathematics));
}

}  // namespace
}  // namespace lockstep::proof
