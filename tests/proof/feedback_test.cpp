// Error feedback: each rounding of a leaf's gradient has the residual of just this leaf, use and byte, once
// in a step, and nothing else touches residuals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "mentions.h"
#include "program/golden_programs.h"
#include "proof/checker.h"
#include "proof/expressions.h"
#include "proof/mutations.h"

namespace lockstep::proof {
namespace {

using program::Role;
using testing::HasSubstr;

Programs feedback_golden() { return program::load_golden("dp2_feedback"); }

std::string findings_of_feedback(const Programs& programs) {
  return program::text_of(check_programs(programs));
}

program::Operand* residual_of(program::Instruction& i) {
  const auto found = std::ranges::find(i.operands, Role::residual, &program::Operand::role);
  return found == i.operands.end() ? nullptr : &*found;
}

/// `change` of each rounding of a leaf in turn; dependencies are those that follow.
void expect_each_rounding_caught(
    const std::string& what,
    const std::function<bool(const program::Program&, program::Instruction&)>& change, int least = 12) {
  int count = 0;
  for (Mutant& mutant :
       with_each(feedback_golden(), what, [&](const program::Program&p, program::Instruction&i) {
         return residual_of(i) != nullptr && change(p, i);
       })) {
    for (program::Program& program : mutant.programs) {
      for (program::Instruction& i : program.instructions) i.after.clear();
      program::derive_dependencies(program);
    }
    ++count;
    EXPECT_NE(findings_of_feedback(mutant.programs), "") << mutant.what;
  }
  EXPECT_GE(count, least);
}

TEST(Feedback, IsProven) { EXPECT_EQ(findings_of_feedback(feedback_golden()), ""); }

TEST(Feedback, OfAnotherLeafIsRefused) {
  expect_each_rounding_caught("of another leaf", [](const program::Program& p, program::Instruction& i) {
    program::ByteRange& range = residual_of(i)->range;
    range.offset = range.offset > 0 ? 0 : p.buffer(range.buffer).size_bytes / 2;
    return true;
  });
}

/// One of the two leaves takes the other's; so would a program without a residual for each.
TEST(Feedback, SharedByTwoLeavesIsRefused) {
  expect_each_rounding_caught(
      "of the first leaf",
      [](const program::Program&, program::Instruction& i) {
        return std::exchange(residual_of(i)->range.offset, 0) != 0;
      },
      6);
}

TEST(Feedback, OfAnotherSegmentIsRefused) {
  // Segments 0 and 2 have as many bytes, of the two uses of one parameter.
  expect_each_rounding_caught(
      "of another use",
      [](const program::Program& p, program::Instruction& i) {
        if (i.segment == 1) return false;
        for (const program::ResidualPlace& place : p.residuals)
          if (place.segment == 2 - i.segment) residual_of(i)->range.buffer = place.buffer;
        return true;
      },
      8);
}

TEST(Feedback, OfShiftedBytesIsRefused) {
  for (const int64_t bytes : {-64, -16, -4, 4, 16, 64})
    expect_each_rounding_caught("of other bytes", [&](const program::Program&, program::Instruction& i) {
      residual_of(i)->range.offset += bytes;
      return true;
    });
}

TEST(Feedback, OfFewerBytesIsRefused) {
  expect_each_rounding_caught("shorter", [](const program::Program&, program::Instruction& i) {
    residual_of(i)->range.size_bytes -= 4;
    return true;
  });
}

TEST(Feedback, LeftOutIsRefused) {
  expect_each_rounding_caught("without", [](const program::Program&, program::Instruction& i) {
    return std::erase_if(i.operands, [](const auto& o) { return o.role == Role::residual; }) == 1;
  });
}

TEST(Feedback, ThatNoRoundingHasIsRefused) {
  Programs programs = program::load_golden("dp2_wire");
  for (program::Program& p : programs) p.error_feedback = true;
  EXPECT_THAT(findings_of_feedback(programs),
              Mentions("mathematics: rank 0 ... it rounds l0 ... without a residual"));
}

TEST(Feedback, ThatIsNotDeclaredIsRefused) {
  Programs programs = feedback_golden();
  for (program::Program& p : programs) p.error_feedback = false;
  EXPECT_THAT(findings_of_feedback(programs),
              Mentions("structure: rank 0 ... residuals, but no error feedback"));
  programs = feedback_golden();
  programs[1].error_feedback = false;
  programs[1].residuals.clear();
  EXPECT_THAT(findings_of_feedback(programs), HasSubstr("structure: rank 1"));
}

TEST(Feedback, WithoutAWireIsRefused) {
  Programs programs = program::load_golden("dp2_tree");
  for (program::Program& p : programs) p.error_feedback = true;
  EXPECT_THAT(findings_of_feedback(programs), Mentions("structure: rank 0 ... error feedback ... float32"));
}

TEST(Feedback, HasAPlaceOfEachLeafOnOneRank) {
  const auto with_place = [](const std::function<void(program::ResidualPlace&)>& change) {
    Programs programs = feedback_golden();
    change(programs[1].residuals[1]);
    return findings_of_feedback(programs);
  };
  EXPECT_THAT(with_place([](auto& place) { place.first_leaf = 1; }),
              Mentions("structure: rank 1 ... leaf 1 of segment 1, and so has rank 0"));
  EXPECT_THAT(with_place([](auto& place) { place.first_leaf = 3; }), HasSubstr("structure: rank 1"));
  EXPECT_THAT(with_place([](auto& place) { place.leaves = 3; }), HasSubstr("structure: rank 1"));
  EXPECT_THAT(with_place([](auto& place) { place.leaves = 1; }), HasSubstr("mathematics: rank 1"));
  EXPECT_THAT(with_place([](auto& place) { place.segment = 0; }), HasSubstr("structure: rank 1"));
  EXPECT_THAT(with_place([](auto& place) { place.buffer = 0; }), HasSubstr("structure: rank 1"));
  EXPECT_THAT(with_place([](auto& place) { place.buffer = 2; }), HasSubstr("structure: rank 1"))
      << "where state of a parameter lies";
  Programs programs = feedback_golden();
  programs[0].residuals.pop_back();
  EXPECT_THAT(findings_of_feedback(programs), HasSubstr("structure: rank 0"));
}

TEST(Feedback, LeavesItsBytesToNobodyElse) {
  using Kind = program::InstructionKind;
  for (const auto& [kind, role] :
       {std::pair{Kind::update, Role::state}, std::pair{Kind::update, Role::gradients},
        std::pair{Kind::cast, Role::source}, std::pair{Kind::norm, Role::gradients}}) {
    Programs programs = feedback_golden();
    program::Program& p = programs[0];
    const auto i = std::ranges::find(p.instructions, kind, &program::Instruction::kind);
    std::ranges::find(i->operands, role, &program::Operand::role)->range.buffer = p.residuals[0].buffer;
    EXPECT_THAT(findings_of_feedback(programs),
                Mentions("structure: rank 0 ... 'residual.0', which holds residuals"))
        << program::name_of(kind) << ", " << program::name_of(role);
  }
  Programs programs = feedback_golden();
  for (program::Instruction& i : programs[0].instructions)
    if (program::Operand* const residual = residual_of(i))
      residual->range = {2, 0, residual->range.size_bytes};
  EXPECT_THAT(findings_of_feedback(programs),
              Mentions("structure: rank 0 ... 'state.0', which holds no residuals"));
}

TEST(Feedback, NeedsNoneForLeavesThatAreRoundedAlready) {
  Programs programs = feedback_golden();
  // Back to float32 and to bfloat16 again, which loses nothing.
  for (program::Program& p : programs) {
    std::vector<program::Instruction> list;
    for (program::Instruction& i : p.instructions) {
      i.after.clear();
      list.push_back(i);
      if (residual_of(i) == nullptr) continue;
      program::Instruction back = i;
      std::erase_if(back.operands, [](const auto& o) { return o.role == Role::residual; });
      std::swap(back.operands[0].range, back.operands[1].range);
      std::swap(back.operands[0].dtype, back.operands[1].dtype);
      list.push_back(back);
      program::Instruction again = i;
      std::erase_if(again.operands, [](const auto& o) { return o.role == Role::residual; });
      list.push_back(again);
    }
    p.instructions = std::move(list);
    program::derive_dependencies(p);
  }
  EXPECT_EQ(findings_of_feedback(programs), "");
}

/// Under FAST a worker's leaf is one, too; the sum of the others has no say.
TEST(Feedback, IsProvenOfFastSums) {
  Programs programs = feedback_golden();
  for (program::Program& p : programs) p.reduction = layout::Reduction::fast;
  EXPECT_EQ(findings_of_feedback(programs), "");
}

TEST(Feedback, IsPartOfTheText) {
  const Programs programs = feedback_golden();
  const std::string text = program::to_text(programs[1]);
  EXPECT_THAT(text, HasSubstr(" wire=bfloat16 error_feedback=true\n"));
  EXPECT_THAT(text, HasSubstr("\nresiduals residual.2 segment=2 leaf=2 leaves=2\n"));
  EXPECT_THAT(text, HasSubstr(" updates residual:residual.2[128+128]"));
  EXPECT_EQ(program::program_from_text(text), programs[1]);
  program::Program without = programs[1];
  without.error_feedback = false;
  EXPECT_NE(program::hash_of(without), program::hash_of(programs[1]));
}

TEST(FeedbackExpressions, KnowLeavesAndWhereTheyAreRounded) {
  Expressions e(2, 2, true);
  const int first = e.complete_leaf(0, 0, 0), second = e.complete_leaf(0, 0, 1),
            tied = e.complete_leaf(0, 1, 0), half = e.chain(Expressions::kNothing, {0, 0, 0, 0});
  EXPECT_EQ(e.leaf_of(first), (Expressions::Atom{0, 0, 0, 0}));
  EXPECT_EQ(e.leaf_of(tied), (Expressions::Atom{0, 1, 0, 0}));
  EXPECT_EQ(e.leaf_of(e.sum(tied, first)), (Expressions::Atom{0, 0, 0, 0})) << "both uses";
  EXPECT_EQ(e.leaf_of(half), std::nullopt);
  EXPECT_EQ(e.leaf_of(e.sum(first, second)), std::nullopt);
  EXPECT_EQ(e.leaf_of(e.sum(first, first)), std::nullopt);
  EXPECT_EQ(e.leaf_of(Expressions::kOther), std::nullopt);

  EXPECT_FALSE(e.rounds_each_leaf(first));
  EXPECT_TRUE(e.rounds_each_leaf(e.rounded(first)));
  EXPECT_FALSE(e.rounds_each_leaf(e.rounded(half)));
  EXPECT_FALSE(e.rounds_each_leaf(e.rounded(e.sum(first, second))));
  EXPECT_FALSE(e.rounds_each_leaf(e.sum(e.rounded(first), second)));
  const int both = e.sum(e.rounded(first), e.rounded(second));
  EXPECT_TRUE(e.rounds_each_leaf(both));
  EXPECT_TRUE(e.rounds_each_leaf(e.rounded(both)));
  EXPECT_TRUE(e.rounds_each_leaf(e.reduction({e.rounded(first), e.rounded(second)})));
  EXPECT_EQ(e.text(e.residual(3, 0, 1), 0, 1), "the residual of l1 after 3 roundings");
}

}  // namespace
}  // namespace lockstep::proof
