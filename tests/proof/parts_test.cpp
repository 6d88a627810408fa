// Parts of parameters that ranks hold and own: where they lie, and that they are a whole together.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "base/index.h"
#include "mentions.h"
#include "program/golden_programs.h"
#include "proof/checker.h"
#include "proof/held_parameters.h"
#include "proof/mutations.h"

namespace lockstep::proof {
namespace {

using Property = CheckFinding::Property;
using tensor::Part;

using RunFields = std::tuple<int, int64_t, int64_t, int64_t>;  // parameter, begin, end, position
std::vector<RunFields> fields_of_runs(const std::vector<HeldRun>& runs) {
  std::vector<RunFields> fields;
  for (const HeldRun& run : runs) fields.emplace_back(run.parameter, run.begin, run.end, run.position);
  return fields;
}

TEST(HeldParameters, AreFoundRowByRow) {
  // Of a 4 x 4 matrix, its middle columns; then the second half of another.
  const std::vector<program::Program> programs{program::program_from_text(
      "program step rank=0 world_size=1 reduction=fast leaves=1 micro_batches_per_leaf=1\n"
      "buffer p space=parameters category=parameters size=64\n"
      "buffer n space=arena category=parameters size=16\n"
      "parameter a buffer=p offset=0 size=64 holds=1+2x4/4 narrow=n narrow_offset=0 uses 0+0\n"
      "parameter b buffer=p offset=32 size=64 holds=8+8 uses 0+64\n")};
  const ProgramWorld world(programs);
  const HeldParameters held(world);
  EXPECT_THAT(fields_of_runs(held.in(0, {0, 0, 64})),
              testing::ElementsAre(RunFields{0, 0, 8, 4}, RunFields{0, 8, 16, 20}, RunFields{0, 16, 24, 36},
                                   RunFields{0, 24, 32, 52}, RunFields{1, 32, 64, 32}));
  EXPECT_THAT(fields_of_runs(held.in(0, {0, 4, 40})),
              testing::ElementsAre(RunFields{0, 0, 4, 8}, RunFields{0, 4, 12, 20}, RunFields{0, 12, 20, 36},
                                   RunFields{0, 20, 28, 52}, RunFields{1, 28, 40, 32}));
  EXPECT_THAT(fields_of_runs(held.in(0, {0, 16, 8})), testing::ElementsAre(RunFields{0, 0, 8, 36}));
  EXPECT_THAT(fields_of_runs(held.in(0, {0, 48, 16})), testing::ElementsAre(RunFields{1, 0, 16, 48}));
  EXPECT_THAT(fields_of_runs(held.in(0, {1, 0, 16})), testing::IsEmpty());
  EXPECT_THAT(fields_of_runs(held.copies_in(0, {1, 2, 10}, DType::bfloat16)),
              testing::ElementsAre(RunFields{0, 0, 2, 8}, RunFields{0, 2, 6, 20}, RunFields{0, 6, 10, 36}));
  EXPECT_EQ(held.in(0, {0, 4, 4})[0].part(), Part::range(2, 1));
}

/// The first rank has a 4 x 4 matrix and sends some of it; the second one has its middle columns.
Programs with_columns_sent(const std::string& sends, const std::string& receives) {
  const auto program_of = [](int rank, const std::string& rest) {
    return program::program_from_text("program boundary rank=" + std::to_string(rank) +
                                      " world_size=2 reduction=fast leaves=1 micro_batches_per_leaf=1\n"
                                      "lane wire comm\nlane copy copy\ngroup world 0 1\n" +
                                      rest);
  };
  return {program_of(0,
                     "buffer p space=parameters category=parameters size=64\n"
                     "parameter a buffer=p offset=0 size=64 uses 0+0\n"
                     "0 exchange @wire group=world reads " +
                         sends + "\n"),
          program_of(1,
                     "buffer p space=parameters category=parameters size=32\n"
                     "buffer saved space=staging category=staging size=32\n"
                     "parameter a buffer=p offset=0 size=64 holds=1+2x4/4 uses 0+0\n"
                     "0 exchange @wire group=world writes " +
                         receives +
                         " after 1'\n"
                         "1 snapshot @copy reads parameters:p writes destination:saved after 0\n")};
}

TEST(HeldRows, AreAllLookedAtWhereTheyAreRead) {
  const Programs rows =
      with_columns_sent("send:p[4+8]@1 send.1:p[20+8]@1 send.2:p[36+8]@1 send.3:p[52+8]@1",
                        "receive:p[0+8]@0 receive.1:p[8+8]@0 receive.2:p[16+8]@0 receive.3:p[24+8]@0");
  EXPECT_EQ(program::text_of(check_programs(rows)), "");
  // Elements 1 to 8 in a row, of which the first two are as they should be.
  const Programs range = with_columns_sent("send:p[4+32]@1", "receive:p@0");
  const auto findings = check_programs(range);
  EXPECT_TRUE(program::has(findings, Property::mathematics)) << program::text_of(findings);
  EXPECT_THAT(program::text_of(findings), Mentions("byte 20 of 'a' ... byte 12 of 'a'"));
}

/// Two workers with a half of each parameter's state.
Programs halves_of_state() { return program::load_golden("dp2_sharded"); }

void expect_told(const Programs& programs, Property property, const std::string& what) {
  const auto findings = check_programs(programs);
  EXPECT_TRUE(program::has(findings, property)) << program::text_of(findings);
  EXPECT_THAT(program::text_of(findings), Mentions(what));
}

TEST(OwnedParts, ThatLeaveElementsToNobodyAreNamed) {
  Programs gap = halves_of_state();
  gap[1].parameters[2].owned = Part::range(65'540, 65'532);
  expect_told(gap, Property::mathematics, "element 65536 of 'head.weight' is updated by nobody");
}

TEST(OwnedParts, ThatMeetAreNamed) {
  Programs twice = halves_of_state();
  twice[1].parameters[2].owned = Part::range(65'472, 65'536);
  expect_told(twice, Property::mathematics,
              "element 65472 of 'head.weight' is updated by owners of two parts");
}

TEST(OwnedParts, OfColumnsAreNotWhatAnUpdateOfRowsUpdates) {
  Programs columns = halves_of_state();
  const Shape shape{1024, 128};
  ASSERT_EQ(columns[0].parameters[2].elements(), shape.count());
  for (int rank : {0, 1})
    nth(columns, rank).parameters[2].owned = Part::rectangle(shape, {0, 1024}, {64 * rank, 64});
  // Together they are a whole, but not what is updated.
  expect_told(columns, Property::mathematics,
              "it updates elements 0 to 65535 of 'head.weight' ... columns 0 to 63");
  EXPECT_THAT(program::text_of(check_programs(columns)), testing::Not(testing::HasSubstr("nobody")));
}

TEST(HeldParts, LieInTheirBuffers) {
  Programs beyond = halves_of_state();
  beyond[0].parameters[2].offset += 4;
  expect_told(beyond, Property::structure, "'head.weight' ... buffer 'param.1'");
  Programs nowhere = halves_of_state();
  nowhere[0].parameters[2].buffer = -1;
  expect_told(nowhere, Property::structure, "'head.weight', and no buffer");
  Programs nothing = halves_of_state();
  nothing[0].parameters[2].held = {};
  expect_told(nothing, Property::structure, "no elements of parameter 'head.weight', and a buffer");
  Programs more = halves_of_state();
  more[0].parameters[2].held = Part::range(1, more[0].parameters[2].elements());
  expect_told(more, Property::structure, "'head.weight'; expected a part of its 131072 elements");
}

TEST(HeldParts, HaveRoomForTheirState) {
  Programs state = halves_of_state();
  state[1].parameters[2].states[1].offset += 4;
  expect_told(state, Property::structure,
              "state of the part of parameter 'head.weight' ... buffer 'state.1'");
  Programs before = halves_of_state();
  before[0].parameters[2].states[0].offset = -4;
  expect_told(before, Property::structure, "state of parameter 'head.weight' lies at byte -4");
}

TEST(HeldParts, AreAllThatIsOwned) {
  Programs half = halves_of_state();
  half[1].parameters[2].held = Part::range(0, 65'536);
  expect_told(half, Property::structure, "owns elements 65536 to 131071 of parameter 'head.weight', but has");
}

TEST(HeldParts, AreWholeWhereSegmentsCompute) {
  // Pulls fill the memory of all of it before it is used for the first time.
  for (const char* golden : {"ps_async", "ps_stale"}) {
    Programs half = program::load_golden(golden);
    half[0].parameters[0].held = Part::range(0, 16);
    expect_told(half, Property::structure, "'fc.weight' ... elements 0 to 15");
  }
}

TEST(HeldParts, HaveAsManyRowsAsAMatrixMay) {
  Programs many = halves_of_state();
  many[0].parameters[2].size_bytes = int64_t{1} << 60;
  many[0].parameters[2].owned = Part::strided(0, 1, int64_t{1} << 57, 2);
  expect_told(many, Property::structure, "'head.weight' in 144115188075855872 rows");
}

TEST(WholeElements, AreWhatParametersHaveAndUpdatesMove) {
  const auto broken = [](const auto& change) {
    Programs programs = halves_of_state();
    change(programs[0]);
    return programs;
  };
  expect_told(broken([](program::Program& p) { p.parameters[2].size_bytes -= 2; }), Property::structure,
              "'head.weight' has 524286 bytes");
  expect_told(broken([](program::Program& p) { p.parameters[2].offset = 2; }), Property::structure,
              "'head.weight' ... byte 2");
  expect_told(broken([](program::Program& p) { p.parameters[2].uses[0].bucket_offset = 2; }),
              Property::structure, "parameter 'head.weight' ... multiples");
  for (const program::Role role :
       {program::Role::parameters, program::Role::gradients, program::Role::state}) {
    const auto cut = broken([role](program::Program& p) {
      for (program::Instruction& i : p.instructions)
        for (program::Operand& o : i.operands)
          if (i.kind == program::InstructionKind::update && o.role == role) {
            o.range.offset += 2;
            o.range.size_bytes -= 4;
          }
    });
    expect_told(cut, Property::structure, "within an element of float32");
  }
}

}  // namespace
}  // namespace lockstep::proof
