// Programs that update a parameter as a whole, broken in ways that only these have.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "program/golden_programs.h"
#include "proof/checker.h"
#include "proof/mutations.h"

namespace lockstep::proof {
namespace {

using Property = CheckFinding::Property;
using program::InstructionKind;
using program::Operand;
using program::Role;

Programs muon() { return program::load_golden("dp2_muon"); }

/// The update of the matrix: the last instruction.
program::Instruction& update_of(program::Program& program) { return program.instructions.back(); }

Operand& operand_of(program::Instruction& instruction, Role role, int index = 0) {
  return *std::ranges::find_if(instruction.operands,
                               [&](const Operand& o) { return o.role == role && o.index == index; });
}

void expect_found(const Programs& programs, Property property, const std::string& what) {
  const auto findings = check_programs(programs);
  EXPECT_TRUE(program::has(findings, property)) << what << "\nfound:\n" << program::text_of(findings);
}

TEST(Wholes, OfTheGoldenAreProven) { EXPECT_EQ(program::text_of(check_programs(muon())), ""); }

TEST(Wholes, NeedTheirScratch) {
  for (const size_t rank : {0u, 1u}) {
    Programs small = muon(), none = muon();
    operand_of(update_of(small[rank]), Role::temporary).range.size_bytes -= 256;
    expect_found(small, Property::mathematics, "less scratch");
    std::erase_if(update_of(none[rank]).operands, [](const Operand& o) { return o.role == Role::temporary; });
    expect_found(none, Property::mathematics, "no scratch");
  }
}

/// Two updates of a half each would do for what is updated element by element.
TEST(Wholes, AreUpdatedByOneInstruction) {
  Programs halves = muon();
  for (program::Program& program : halves) {
    program::Instruction second = update_of(program);
    for (program::Instruction* half : {&update_of(program), &second})
      for (Operand& o : half->operands) {
        if (o.role != Role::gradients && o.role != Role::parameters && o.role != Role::state) continue;
        o.range.size_bytes /= 2;
        if (half == &second) o.range.offset += o.range.size_bytes;
      }
    program.instructions.push_back(second);
    program.instructions[0].after[0].instruction = static_cast<int>(program.instructions.size()) - 1;
  }
  expect_found(halves, Property::mathematics, "two halves");
  for (program::Program& program : halves) program.parameters[0].whole_scratch = 0;
  EXPECT_EQ(program::text_of(check_programs(halves)), "");
}

TEST(Wholes, AreOwnedWhole) {
  Programs part = muon();
  program::ParameterPlace& place = part[1].parameters[0];
  place.owned = tensor::Part::range(0, place.elements() - 16);
  expect_found(part, Property::structure, "half of it is owned");
}

TEST(Wholes, AreAgreedOn) {
  Programs one = muon();
  one[1].parameters[0].whole_scratch = 0;
  expect_found(one, Property::structure, "one rank updates it element by element");
  Programs negative = muon();
  for (program::Program& program : negative) program.parameters[0].whole_scratch = -256;
  expect_found(negative, Property::structure, "less than nothing");
}

TEST(Wholes, AreInTheText) {
  const Programs programs = muon();
  EXPECT_EQ(programs[0].parameters[0].whole_scratch, 262144);
  EXPECT_EQ(programs[0].parameters[1].whole_scratch, 0);
}

}  // namespace
}  // namespace lockstep::proof
