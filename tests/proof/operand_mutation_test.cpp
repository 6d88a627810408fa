// Broken programs that the checker refuses: bytes, their types, what they are of, and who owns them.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

#include "proof/every_mutant.h"

namespace lockstep::proof {
namespace {

using Property = CheckFinding::Property;

/// What other ranks are told of: not what only this one reads, and not its scratch.
bool is_transferred(const program::Instruction& i, const program::Operand& o) {
  return program::communicates(i.kind) && o.role != program::Role::metrics &&
         o.role != program::Role::source && o.role != program::Role::temporary &&
         !(i.kind == program::InstructionKind::push && o.role == program::Role::verdict);
}

TEST(Mutation, ChangingTheSizeOfATransferIsAMatchingFinding) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each_operand(
            programs, "16 bytes shorter",
            [](const program::Program&, const program::Instruction& i, program::Operand& o) {
              // Blocks of a ring would end beyond it.
              if (!is_transferred(i, o) || !i.blocks.empty()) return false;
              o.range.size_bytes -= 16;
              return true;
            });
      },
      {Property::matching}, 120, is_alone);
}

TEST(Mutation, ChangingTheTypeOfATransferIsAMatchingFinding) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each_operand(
            programs, "in another type",
            [](const program::Program&, const program::Instruction& i, program::Operand& o) {
              if (!is_transferred(i, o)) return false;
              o.dtype = o.dtype == DType::bfloat16 ? DType::float16 : DType::bfloat16;
              return true;
            });
      },
      // Pushes and pulls have one type.
      {Property::matching, Property::structure}, 120, is_alone);
}

/// Of as many bytes, and of fewer and more: sums of them are other sums, whoever agrees on them.
constexpr DType kOtherTypes[] = {DType::int32, DType::bfloat16, DType::float64};

TEST(Mutation, ChangingTheTypeOfASumOnAllRanksTogetherIsMathematics) {
  for (const DType dtype : kOtherTypes)
    for (const program::InstructionKind kind :
         {program::InstructionKind::all_reduce, program::InstructionKind::ring_reduce_scatter})
      expect_all_caught(
          [&](const Programs& programs) {
            return with_each_collective(programs, kind, fmt::format("in {}", name_of(dtype)),
                                        [dtype](program::Instruction& i) {
                                          bool changed = false;
                                          for (program::Operand& o : i.operands)
                                            changed |= std::exchange(o.dtype, dtype) != dtype;
                                          return changed;
                                        });
          },
          {Property::mathematics}, kind == program::InstructionKind::all_reduce ? 6 : 2, is_alone);
}

TEST(Mutation, ChangingTheTypeOfWhatIsComputedWithIsNoticed) {
  for (const DType dtype : kOtherTypes)
    for (const program::InstructionKind kind :
         {program::InstructionKind::add, program::InstructionKind::norm, program::InstructionKind::update})
      expect_all_caught(
          [&](const Programs& programs) {
            return with_each(programs, fmt::format("in {}", name_of(dtype)),
                             [&](const program::Program&, program::Instruction& i) {
                               if (i.kind != kind) return false;
                               bool changed = false;
                               for (program::Operand& o : i.operands) {
                                 const bool is_copy = kind == program::InstructionKind::update &&
                                                      o.role == program::Role::destination;
                                 if (is_copy) continue;
                                 if (o.role != program::Role::destination &&
                                     o.role != program::Role::source && o.role != program::Role::gradients &&
                                     o.role != program::Role::parameters)
                                   continue;
                                 changed |= std::exchange(o.dtype, dtype) != dtype;
                               }
                               return changed;
                             });
          },
          // Norms and updates have one type.
          {kind == program::InstructionKind::add ? Property::mathematics : Property::structure}, 10);
}

TEST(Mutation, AnUpdateWithoutItsCopyIsMathematics) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each(programs, "no copy", [](const program::Program&, program::Instruction& i) {
          return i.kind == program::InstructionKind::update &&
                 std::erase_if(i.operands, [](const program::Operand& o) {
                   return o.role == program::Role::destination;
                 }) > 0;
        });
      },
      {Property::mathematics}, 4);
}

TEST(Mutation, ACopyOfAnotherTypeIsMathematics) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each_operand(
            programs, "in bfloat16",
            [](const program::Program&, const program::Instruction& i, program::Operand& o) {
              const bool is_copy =
                  i.kind == program::InstructionKind::update && o.role == program::Role::destination;
              if (is_copy) o.dtype = DType::bfloat16;
              return is_copy;
            });
      },
      {Property::mathematics}, 4);
}

TEST(Mutation, ACopyThatIsMadeOnceOfWhatChangesIsCaught) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each(programs, "anew alone", [](const program::Program&, program::Instruction& i) {
          return i.kind == program::InstructionKind::cast && !std::exchange(i.anew, true);
        });
      },
      {Property::mathematics, Property::structure}, 4);
}

TEST(Mutation, ChangingALeafIsStructureOrMathematics) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each(programs, "another leaf", [](const program::Program& p, program::Instruction& i) {
          if (!is_backward(i) || p.leaves == 1) return false;
          i.leaf = (i.leaf + 1) % p.leaves;
          return true;
        });
      },
      {Property::structure, Property::mathematics}, 30);
}

TEST(Mutation, ChangingAMicroBatchIsStructureOrMathematics) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each(programs, "another micro-batch",
                         [](const program::Program&, program::Instruction& i) {
                           if (!is_backward(i) && i.kind != program::InstructionKind::forward) return false;
                           i.micro_batch += 1;
                           return true;
                         });
      },
      {Property::structure, Property::mathematics}, 90);
}

TEST(Mutation, AccumulatingWhereALeafBeginsOrOverwritingWhereItGoesOnIsCaught) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each(programs, "accumulate turned over",
                         [](const program::Program&, program::Instruction& i) {
                           if (!is_backward(i) && i.kind != program::InstructionKind::forward) return false;
                           bool changed = false;
                           for (program::Operand& o : i.operands)
                             if (o.role == program::Role::gradients || o.role == program::Role::metrics) {
                               o.access = i.accumulate ? program::Access::write : program::Access::read_write;
                               changed = true;
                             }
                           i.accumulate = !i.accumulate;
                           return changed;
                         });
      },
      {Property::mathematics, Property::data}, 70);
}

TEST(Mutation, AnAccumulateFlagThatItsOperandContradictsIsStructure) {
  expect_all_caught(
      [](const Programs& programs) {
        return with_each(programs, "flag turned over", [](const program::Program&, program::Instruction& i) {
          i.accumulate = !i.accumulate;
          return is_backward(i);
        });
      },
      {Property::structure}, 50);
}

TEST(Mutation, ShiftingARangeIsCaught) {
  expect_all_caught(with_a_shifted_range,
                    {Property::structure, Property::matching, Property::data, Property::mathematics}, 400);
}

/// Programs that neither update nor save look at nobody's ownership or state.
bool uses_state(const Mutant& mutant) {
  for (const program::Program& program : mutant.programs)
    for (const program::Instruction& i : program.instructions)
      if (i.kind == program::InstructionKind::update) return true;
  return false;
}

TEST(Mutation, OwningOtherBytesThanThoseUpdatedIsCaught) {
  expect_all_caught(with_another_owned_range, {Property::structure, Property::mathematics}, 100,
                    [](const Mutant& mutant) { return !uses_state(mutant); });
}

TEST(Mutation, HavingAnotherPartOfAParameterIsCaught) {
  expect_all_caught(with_another_held_part, {Property::structure, Property::mathematics}, 300);
}

TEST(Mutation, ASecondServerOfTheSameBytesIsMathematics) {
  expect_all_caught(with_a_second_server, {Property::mathematics}, 1);
}

TEST(Mutation, StateInAnotherPlaceIsCaught) {
  expect_all_caught(with_another_state_place, {Property::structure, Property::mathematics}, 100,
                    [](const Mutant& mutant) { return !uses_state(mutant); });
}

TEST(Mutation, ShiftingTheSumsOfSquaresWithinABucketIsCaught) {
  for (const int64_t shift : {-262144, -4, 4, 262144})
    expect_all_caught(
        [shift](const Programs& programs) {
          return with_each_operand(
              programs, fmt::format("{} bytes on", shift),
              [shift](const program::Program&, const program::Instruction& i, program::Operand& o) {
                o.position += shift;
                return i.kind == program::InstructionKind::norm && o.role == program::Role::gradients;
              });
        },
        {Property::structure, Property::mathematics}, 20);
}

TEST(Mutation, SharingTheBytesOfALiveBufferIsCaught) {
  expect_all_caught(with_a_shared_live_buffer, {Property::structure, Property::data}, 200);
}

TEST(Mutation, ReadingBeforeAnythingIsWrittenIsADataFinding) {
  expect_all_caught(
      [](const Programs& programs) {
        std::vector<Mutant> mutants;
        for (size_t r = 0; r < programs.size(); ++r)
          for (size_t b = 0; b < programs[r].buffers.size(); ++b) {
            // All that write the buffer write another one instead.
            Mutant mutant{fmt::format("rank {}: {} is never written", r, programs[r].buffers[b].name),
                          programs};
            program::Program& program = mutant.programs[r];
            const program::ProgramBuffer& old = programs[r].buffers[b];
            const int elsewhere = program.add_buffer("elsewhere", old.space, old.category, old.size_bytes);
            bool written = false, read = false;
            for (program::Instruction& i : program.instructions)
              for (program::Operand& o : i.operands) {
                if (o.range.buffer != static_cast<int>(b)) continue;
                const bool only_writes =
                    o.access == program::Access::write && o.role != program::Role::temporary;
                written = written || only_writes;
                read =
                    read || (o.access == program::Access::read && i.kind != program::InstructionKind::serve);
                if (only_writes) o.range.buffer = elsewhere;
              }
            bool initial = old.space == program::Space::optimizer;
            for (const program::ParameterPlace& place : programs[r].parameters)
              initial = initial || place.buffer == static_cast<int>(b);
            program::derive_dependencies(program);
            if (written && read && !initial) mutants.push_back(std::move(mutant));
          }
        return mutants;
      },
      {Property::data}, 100);
}

}  // namespace
}  // namespace lockstep::proof
