#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "mentions.h"
#include "program/golden_programs.h"

namespace lockstep::program {
namespace {

constexpr const char* kText =
    "program step rank=1 world_size=2 reduction=reproducible leaves=4 micro_batches_per_leaf=2\n"
    "lane main compute\n"
    "lane \"to rank 0\" comm\n"
    "group pair 0 1\n"
    "group near 1 0 shared_memory\n"
    "buffer grad space=gradients category=gradients size=256 offset=64\n"
    "buffer half space=arena category=workspace size=128\n"
    "parameter \"block 0/w\" offset=-64 size=256 uses 3+0 5+512\n"
    "parameter b buffer=grad offset=128 size=64 narrow=half narrow_offset=32 uses 3+256\n"
    "0 backward @main segment=3 micro_batch=2 leaf=3 accumulate reads input.4:half updates "
    "gradients.3:grad^64 after 1'\n"
    "1 exchange @\"to rank 0\" group=pair deadline=communication reads send:half@0~float16 writes "
    "receive.1:grad[0+128]@0"
    " after 0 1'\n"
    "2 all_reduce @\"to rank 0\" ordered group=near updates data:grad\n"
    "3 backward @main segment=3 micro_batch=3 leaf=0 leaves=3\n";

/// The text above, put together by hand.
Program built_by_hand() {
  Program p;
  p.name = "step";
  p.rank = 1;
  p.world_size = 2;
  p.reduction = layout::Reduction::reproducible;
  p.leaves = 4;
  p.micro_batches_per_leaf = 2;
  p.add_lane("main", LaneKind::compute);
  p.add_lane("to rank 0", LaneKind::comm);
  p.groups.push_back({"pair", {0, 1}});
  p.groups.push_back({"near", {1, 0}, Transport::shared_memory});
  const int grad = p.add_buffer("grad", Space::gradients, Category::gradients, 256);
  p.buffers.back().offset = 64;
  const int half = p.add_buffer("half", Space::arena, Category::workspace, 128);
  p.parameters.push_back({"block 0/w", -1, -64, 256, {}, {{3, 0}, {5, 512}}});
  p.parameters.push_back({"b", grad, 128, 64, tensor::Part::range(0, 16), {{3, 256}}, half, 32});
  Instruction backward;
  backward.kind = InstructionKind::backward;
  backward.segment = 3;
  backward.micro_batch = 2;
  backward.leaf = 3;
  backward.accumulate = true;
  backward.operands.push_back({Role::input, 4, Access::read, p.whole(half)});
  backward.operands.push_back(
      {Role::gradients, 3, Access::read_write, p.whole(grad), -1, DType::float32, 64});
  backward.after = {{1, 1}};
  Instruction exchange;
  exchange.kind = InstructionKind::exchange;
  exchange.lane = 1;
  exchange.group = 0;
  exchange.deadline = DeadlineClass::communication;
  exchange.operands.push_back({Role::send, 0, Access::read, p.whole(half), 0, DType::float16});
  exchange.operands.push_back({Role::receive, 1, Access::write, {grad, 0, 128}, 0});
  exchange.after = {{0, 0}, {1, 1}};
  Instruction reduce;
  reduce.kind = InstructionKind::all_reduce;
  reduce.lane = 1;
  reduce.ordered = true;
  reduce.group = 1;
  reduce.operands.push_back({Role::data, 0, Access::read_write, p.whole(grad)});
  p.instructions = {backward, exchange, reduce};
  Instruction of_leaves;
  of_leaves.kind = InstructionKind::backward;
  of_leaves.segment = 3;
  of_leaves.micro_batch = 3;
  of_leaves.leaf = 0;
  of_leaves.leaves = 3;
  p.instructions.push_back(of_leaves);
  return p;
}

std::string error_of(const std::string& text) {
  try {
    program_from_text(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ProgramText, ReadsEveryField) { EXPECT_TRUE(program_from_text(kText) == built_by_hand()); }

TEST(ProgramText, WritesWhatItReads) { EXPECT_EQ(to_text(built_by_hand()), kText); }

TEST(ProgramText, SkipsBlankLinesAndComments) {
  EXPECT_TRUE(program_from_text("# what it is\n\n" +
                                replaced(kText, "group pair 0 1\n", "group pair 0 1  # both\n\n")) ==
              built_by_hand());
}

TEST(ProgramText, ReadsSeveralPrograms) {
  const std::string one = to_text(built_by_hand());
  EXPECT_EQ(programs_from_text(one + one).size(), 2u);
  EXPECT_THAT(error_of(one + one), Mentions("one program ... 2"));
}

TEST(ProgramText, QuotesNames) {
  Program p = built_by_hand();
  p.buffers[1].name = "a \"b\"\\[c]@d\nlast";
  EXPECT_TRUE(program_from_text(to_text(p)) == p);
}

TEST(ProgramText, RefusesToWriteTwoBuffersOfOneName) {
  Program p = built_by_hand();
  p.buffers[1].name = "grad";
  EXPECT_THROW(to_text(p), InternalError);
}

TEST(ProgramText, NamesTheLineOfAnError) {
  const std::string good = to_text(built_by_hand());
  EXPECT_THAT(error_of(replaced(good, "input.4:half", "input.4:halt")),
              Mentions("line 10 ... 'halt' ... 'half'"));
  EXPECT_THAT(error_of(replaced(good, "0 backward", "0 bakward")), Mentions("line 10 ... 'backward'"));
  EXPECT_THAT(error_of(replaced(good, "1 exchange", "2 exchange")), Mentions("line 11 ... instruction 1"));
  EXPECT_THAT(error_of(replaced(good, "segment=3", "segmnt=3")), testing::HasSubstr("'segment'"));
  EXPECT_THAT(error_of(replaced(good, "size=128", "size=big")),
              testing::AllOf(testing::HasSubstr("line 7"), testing::HasSubstr("expected a number")));
  EXPECT_THAT(error_of(replaced(good, "send:half@0~float16", "send:half@0~float17")),
              testing::HasSubstr("line 11"));
  EXPECT_THAT(error_of(replaced(good, "1 0 shared_memory", "1 0 shared_memry")),
              Mentions("line 5 ... 'shared_memory'"));
  EXPECT_THAT(error_of("lane main compute\n"), testing::HasSubstr("line 1"));
}

TEST(ProgramText, SaysWhereResidualsLie) {
  const std::string text =
      "program step rank=0 world_size=1 reduction=fast leaves=2 micro_batches_per_leaf=1 wire=bfloat16 "
      "error_feedback=true\n"
      "buffer residual.3 space=optimizer category=optimizer_state size=128\n"
      "residuals residual.3 segment=3 leaf=0 leaves=2\n";
  const Program read = program_from_text(text);
  EXPECT_TRUE(read.error_feedback);
  EXPECT_EQ(read.residuals, (std::vector<ResidualPlace>{{3, 0, 0, 2}}));
  EXPECT_EQ(to_text(read), text);
  EXPECT_EQ(read.residual_range(3, 1, 16, 32), (ByteRange{0, 80, 32}));
  EXPECT_THROW(read.residual_range(3, 2, 0, 4), InternalError);
  EXPECT_THROW(read.residual_range(2, 0, 0, 4), InternalError);
  EXPECT_THROW(read.residual_range(3, 0, 48, 32), InternalError) << "some are another leaf's";
  const auto refused = [&](const std::string& from, const std::string& to) {
    return error_of(replaced(text, from, to));
  };
  EXPECT_THAT(refused("feedback=true", "feedback=maybe"), Mentions("line 1 ... error_feedback is true"));
  EXPECT_THAT(refused("error_feedback", "feedback"), Mentions("line 1 ... 'feedback' ... error_feedback"));
  EXPECT_THAT(refused("residuals residual.3", "residuals residual.2"), Mentions("line 3 ... 'residual.3'"));
  EXPECT_THAT(refused("leaf=0", "leaf=first"), Mentions("line 3 ... number"));
  EXPECT_THAT(refused(" leaves=2\n", "\n").substr(0, 60), testing::HasSubstr("line 3"));
}

TEST(ProgramText, NamesWhatIsWrongWithStateAndOwnership) {
  const std::string good = replaced(to_text(built_by_hand()), "narrow_offset=32",
                                    "narrow_offset=32 state=half@-8 state=half@24 owns=4+8");
  const Program read = program_from_text(good);
  EXPECT_EQ(read.parameters[1].states, (std::vector<ParameterPlace::State>{{1, -8}, {1, 24}}));
  EXPECT_EQ(read.parameters[1].owned, tensor::Part::range(4, 8));
  EXPECT_EQ(to_text(read), good);
  const auto refused = [&](const std::string& from, const std::string& to) {
    return error_of(replaced(good, from, to));
  };
  for (const auto& [from, to] : {std::pair{"state=half@-8", "state=half"},
                                 {"state=half@-8", "state=half@"},
                                 {"state=half@-8", "state=half+8"},
                                 {"state=half@-8", "state=@8"},
                                 {"state=half@-8", "state=half@many"},
                                 {"owns=4+8", "owns=4"},
                                 {"owns=4+8", "owns=4+"},
                                 {"owns=4+8", "owns=+8"},
                                 {"owns=4+8", "owns=4-8"},
                                 {"owns=4+8", "owns=-4+8"},
                                 {"owns=4+8", "owns=4+2x3"},
                                 {"owns=4+8", "owns=4+2x3/1"},
                                 {"owns=4+8", "owns=4+half"}})
    EXPECT_THAT(refused(from, to), testing::HasSubstr("line 9")) << to;
  EXPECT_THAT(refused("state=half@-8", "state=halt@-8"), testing::HasSubstr("'halt'"));
  EXPECT_THAT(refused("owns=4+8", "own=4+8"),
              testing::HasSubstr("unknown field 'own'; expected buffer, offset, size"));
}

TEST(ProgramText, SaysWhichPartsARankHoldsAndOwns) {
  const std::string all = to_text(built_by_hand());
  EXPECT_EQ(program_from_text(replaced(all, "narrow=", "owns=all narrow=")).parameters[1].owned,
            tensor::Part::range(0, 16));
  const std::string parts = replaced(all, "size=64 narrow=half narrow_offset=32",
                                     "size=64 holds=2+2x3/4 narrow=half narrow_offset=32 owns=2+2");
  const Program read = program_from_text(parts);
  EXPECT_EQ(read.parameters[1].held, tensor::Part::rectangle(Shape{4, 4}, {0, 3}, {2, 2}));
  EXPECT_EQ(read.parameters[1].held_range(), (ByteRange{0, 128, 24}));
  EXPECT_EQ(read.parameters[1].owned, tensor::Part::range(2, 2));
  EXPECT_EQ(to_text(read), parts);
  // What has no place is not held, and what has one is held whole, unless the text says otherwise.
  Program odd = built_by_hand();
  odd.parameters[0].held = tensor::Part::range(1, 1);
  odd.parameters[1].held = {};
  EXPECT_EQ(program_from_text(to_text(odd)), odd);
}

TEST(ProgramText, RefusesASecondBufferOfOneName) {
  EXPECT_THAT(error_of(replaced(to_text(built_by_hand()), "buffer half", "buffer grad")),
              Mentions("second buffer ... 'grad'"));
}

TEST(ProgramHash, IgnoresTheRankAndNothingElse) {
  const Program p = built_by_hand();
  Program other = p;
  other.rank = 0;
  EXPECT_EQ(hash_of(other), hash_of(p));
  other.instructions[1].operands[1].range.size_bytes = 64;
  EXPECT_NE(hash_of(other), hash_of(p));
  other = p;
  other.instructions[0].after[0].distance = 0;
  EXPECT_NE(hash_of(other), hash_of(p));
}

TEST(ProgramDescription, NamesInstructionLaneSegmentAndMicroBatch) {
  EXPECT_EQ(describe(built_by_hand(), 0),
            "step instruction 0 (backward, lane main, segment 3, micro-batch 2, leaf 3)");
  EXPECT_EQ(describe(built_by_hand(), 1), "step instruction 1 (exchange, lane to rank 0)");
}

TEST(ProgramText, StatesReplicasWhereTheyHaveStages) {
  Program program = built_by_hand();
  program.replicas = 2;
  const std::string text = to_text(program);
  EXPECT_NE(text.find(" micro_batches_per_leaf=2 replicas=2\n"), std::string::npos) << text;
  EXPECT_EQ(program_from_text(text), program);
  EXPECT_EQ(to_text(built_by_hand()).find(" replicas="), std::string::npos);
}

}  // namespace
}  // namespace lockstep::program
