// Gradients that are rounded on their way: only to the type that programs declare and, under REPRODUCIBLE, at
// every node of the tree.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>

#include "mentions.h"
#include "program/golden_programs.h"
#include "program/instruction_rules.h"
#include "proof/checker.h"
#include "proof/expressions.h"

namespace lockstep::proof {
namespace {

using testing::HasSubstr;
using Programs = std::vector<program::Program>;

Programs golden() { return program::load_golden("dp2_wire"); }

std::string findings(const Programs& programs) { return program::text_of(check_programs(programs)); }

Programs with_wire(Programs programs, DType wire) {
  for (program::Program& program : programs) program.wire = wire;
  return programs;
}

/// The ring of two workers, all of whose sums are of elements of two bytes.
Programs narrow_ring() {
  Programs programs = program::load_golden("dp2_ring");
  for (program::Program& program : programs) {
    std::vector<program::Instruction> list;
    std::vector<int> narrow(program.buffers.size(), -1);
    for (program::Instruction& i : program.instructions) {
      i.after.clear();
      const bool sums = i.kind == program::InstructionKind::ring_reduce_scatter;
      if (!sums && i.kind != program::InstructionKind::ring_all_gather) {
        list.push_back(i);
        continue;
      }
      for (program::BlockRun& run : i.blocks) run = {run.begin / 2, run.end / 2, run.each / 2, run.owner};
      const program::ByteRange wide = i.operands[0].range;
      int& buffer = narrow[static_cast<size_t>(wide.buffer)];
      if (buffer < 0)
        buffer = program.add_buffer("wire." + std::to_string(wide.buffer), program::Space::arena,
                                    program::Category::gradients, wide.size_bytes / 2);
      program::Instruction cast{.kind = program::InstructionKind::cast, .lane = i.lane, .segment = i.segment};
      cast.operands = {{.role = program::Role::destination,
                        .access = program::Access::write,
                        .range = program.whole(buffer),
                        .dtype = DType::bfloat16},
                       {.role = program::Role::source, .range = wide}};
      for (program::Operand& o : i.operands) o.dtype = DType::bfloat16;
      i.operands[0].range = program.whole(buffer);
      if (sums) list.push_back(cast);
      list.push_back(i);
      if (sums) continue;
      std::swap(cast.operands[0].range, cast.operands[1].range);
      std::swap(cast.operands[0].dtype, cast.operands[1].dtype);
      list.push_back(cast);
    }
    program.instructions = std::move(list);
    program::derive_dependencies(program);
  }
  return programs;
}

TEST(Wire, IsRoundedToWhereItIsDeclared) {
  EXPECT_EQ(findings(golden()), "");
  EXPECT_THAT(findings(with_wire(golden(), DType::float32)),
              AllOf(HasSubstr("mathematics"), Mentions("a gradient rounded to bfloat16 ... not declare")));
}

TEST(Wire, RoundsEveryNodeOfTheTree) {
  const Programs exact = with_wire(program::load_golden("dp2_tree"), DType::bfloat16);
  EXPECT_THAT(findings(exact), Mentions("mathematics: ... the gradient of 'fc.weight' should be "
                                        "round(round(round(l0)+round(l1))+round(round(l2)+round(l3))), but "
                                        "what arrives is (l0+l1)+(l2+l3)"));
}

/// Each worker adds its two leaves as float32, and rounds their sum alone.
Programs with_exact_leaves() {
  Programs programs = golden();
  for (program::Program& program : programs) {
    std::vector<program::Instruction> list;
    program::ByteRange second{};  // the gradient of a segment's second leaf
    for (program::Instruction& i : program.instructions) {
      i.after.clear();
      const bool on_compute = program.lane(i.lane).kind == program::LaneKind::compute;
      const bool narrows = on_compute && i.kind == program::InstructionKind::cast;
      if (program::is_backward(i.kind)) second = {};
      for (program::Operand& o : i.operands)
        if (program::is_backward(i.kind) && i.micro_batch == 1 && o.role == program::Role::gradients) {
          o.range.buffer =
              program.add_buffer("second." + std::to_string(i.segment), program::Space::gradients,
                                 program::Category::gradients, o.range.size_bytes);
          second = o.range;
        }
      if (narrows && second.buffer < 0) continue;
      if (narrows) {
        const program::ByteRange first = i.operands[1].range;
        list.push_back(
            {.kind = program::InstructionKind::add,
             .lane = i.lane,
             .operands = {
                 {.role = program::Role::destination, .access = program::Access::read_write, .range = first},
                 {.role = program::Role::source, .range = second}}});
        i.operands[0].range.buffer -= 1;  // slot 0
      }
      if (on_compute && i.kind == program::InstructionKind::add && i.operands[0].dtype == DType::bfloat16)
        continue;
      list.push_back(i);
    }
    program.instructions = std::move(list);
    program::derive_dependencies(program);
  }
  return programs;
}

TEST(Wire, RoundsLeavesThatNobodySends) {
  EXPECT_THAT(findings(with_exact_leaves()),
              Mentions("mathematics: ... what arrives is round(round(l0+l1)+round(l2+l3))"));
  Programs fast = with_exact_leaves();
  for (program::Program& program : fast) program.reduction = layout::Reduction::fast;
  EXPECT_EQ(findings(fast), "");
}

TEST(Wire, RoundsSumsOfFastInAnyOrder) {
  EXPECT_EQ(findings(with_wire(narrow_ring(), DType::bfloat16)), "");
  EXPECT_THAT(findings(narrow_ring()),
              AllOf(HasSubstr("mathematics"), Mentions("a gradient rounded to bfloat16 ... not declare")));
}

TEST(Wire, IsOneOfAllRanks) {
  Programs programs = golden();
  programs[1].wire = DType::float32;
  EXPECT_THAT(findings(programs), Mentions("structure: rank 1 ... wire"));
}

TEST(Wire, HasTheTypesThatExecutorsSum) {
  for (const DType dtype : {DType::float16, DType::float64, DType::int32})
    EXPECT_THAT(findings(with_wire(golden(), dtype)), Mentions("structure: rank 0 ... its wire is"));
}

/// The golden in which rank 0 also rounds the range of an operand, behind each update of segment 1.
Programs with_rounded(const std::string& name, program::Role role) {
  Programs programs = program::load_golden(name);
  program::Program& program = programs[0];
  std::vector<program::Instruction> list;
  for (program::Instruction& i : program.instructions) {
    i.after.clear();
    list.push_back(i);
    const auto rounded = std::ranges::find(i.operands, role, &program::Operand::role);
    if (i.kind != program::InstructionKind::update || i.segment != 1) continue;
    const program::ByteRange wide = rounded->range;
    const int buffer = program.add_buffer("rounded", program::Space::arena, program::Category::workspace,
                                          wide.size_bytes / 2);
    program::Instruction cast{.kind = program::InstructionKind::cast, .lane = i.lane};
    cast.operands = {{.role = program::Role::destination,
                      .access = program::Access::write,
                      .range = program.whole(buffer),
                      .dtype = DType::bfloat16},
                     {.role = program::Role::source, .range = wide}};
    list.push_back(cast);
    std::swap(cast.operands[0].range, cast.operands[1].range);
    std::swap(cast.operands[0].dtype, cast.operands[1].dtype);
    list.push_back(cast);
  }
  program.instructions = std::move(list);
  program::derive_dependencies(program);
  return programs;
}

TEST(Rounding, OfParametersAndStateIsRefused) {
  for (const char* name : {"dp2_tree", "dp2_fast", "dp2_wire"}) {
    EXPECT_THAT(findings(with_rounded(name, program::Role::parameters)), HasSubstr("rounded to bfloat16"))
        << name;
    EXPECT_THAT(findings(with_rounded(name, program::Role::state)), HasSubstr("rounded to bfloat16")) << name;
  }
}

TEST(Rounding, OfOneReplicasGradientsUnderFastIsRefused) {
  Programs programs = with_wire(program::load_golden("dp2_fast"), DType::bfloat16);
  EXPECT_EQ(findings(programs), "");
  program::Program& program = programs[0];
  const auto update =
      std::ranges::find(program.instructions, program::InstructionKind::update, &program::Instruction::kind);
  const program::ByteRange wide =
      std::ranges::find(update->operands, program::Role::gradients, &program::Operand::role)->range;
  const int buffer =
      program.add_buffer("rounded", program::Space::arena, program::Category::workspace, wide.size_bytes / 2);
  program::Instruction down{.kind = program::InstructionKind::cast, .lane = update->lane};
  down.operands = {{.role = program::Role::destination,
                    .access = program::Access::write,
                    .range = program.whole(buffer),
                    .dtype = DType::bfloat16},
                   {.role = program::Role::source, .range = wide}};
  program::Instruction up = down;
  std::swap(up.operands[0].range, up.operands[1].range);
  std::swap(up.operands[0].dtype, up.operands[1].dtype);
  const auto place = program.instructions.insert(update, up);
  program.instructions.insert(place, down);
  for (program::Instruction& i : program.instructions) i.after.clear();
  program::derive_dependencies(program);
  EXPECT_THAT(findings(programs), AllOf(HasSubstr("round("), Mentions("rank 1 ... byte 0 ... but rank 0")));
}

TEST(Wire, IsReadByNoUpdateAndNoNorm) {
  for (const program::InstructionKind kind :
       {program::InstructionKind::update, program::InstructionKind::norm,
        program::InstructionKind::backward}) {
    Programs programs = golden();
    for (program::Program& program : programs)
      for (program::Instruction& i : program.instructions)
        if (i.kind == kind)
          for (program::Operand& o : i.operands)
            if (o.role == program::Role::gradients) {
              o.dtype = DType::bfloat16;
              o.range.size_bytes /= 2;
            }
    EXPECT_THAT(findings(programs), Mentions("structure: ... operand gradients has elements of bfloat16"));
  }
}

TEST(Casts, AreOfNumbersThatExecutorsCast) {
  for (const DType dtype : {DType::int32, DType::float64}) {
    Programs programs = golden();
    for (program::Instruction& i : programs[0].instructions)
      if (i.kind == program::InstructionKind::cast)
        for (program::Operand& o : i.operands) o.dtype = dtype;
    EXPECT_THAT(findings(programs),
                Mentions(std::string("structure: ... casts elements of ") + std::string(name_of(dtype))));
  }
}

TEST(Wire, IsPartOfTheText) {
  const Programs programs = golden();
  EXPECT_THAT(program::to_text(programs[0]), HasSubstr(" wire=bfloat16\n"));
  EXPECT_EQ(program::program_from_text(program::to_text(programs[0])), programs[0]);
  program::Program both = programs[0];
  both.replicas = 1;
  EXPECT_EQ(program::program_from_text(program::to_text(both)), both);
}

TEST(RoundedExpressions, AreRoundedOnce) {
  Expressions e(4, 1, true);
  std::vector<int> leaves;
  for (int leaf = 0; leaf < 3; ++leaf) leaves.push_back(e.complete_leaf(0, 0, leaf));
  const int rounded = e.rounded(leaves[0]);
  EXPECT_NE(rounded, leaves[0]);
  EXPECT_EQ(e.rounded(rounded), rounded);
  EXPECT_TRUE(e.is_gradient_sum(rounded));
  EXPECT_EQ(e.atoms(rounded), e.atoms(leaves[0]));
  EXPECT_NE(e.tree(leaves), e.tree(leaves, Expressions::Nodes::rounded));
  EXPECT_EQ(e.text(e.tree(leaves, Expressions::Nodes::rounded), 0, 1), "round(round(l0+l1)+l2)");
}

TEST(RoundedExpressions, AddUsesOfAParameterExactly) {
  Expressions e(2, 1, true);
  EXPECT_EQ(e.text(e.canonical(0, 2), 0, 2),
            "round(round(u0:l0)+round(u0:l1))+round(round(u1:l0)+round(u1:l1))");
}

}  // namespace
}  // namespace lockstep::proof
