// What an executor would run wrongly without a word is refused when its program is bound, before anything
// runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "program/golden_programs.h"
#include "train/programs/golden_ranks.h"

namespace lockstep::train {
namespace {

using testing::HasSubstr;

/// The first rank's program of a golden, its text changed from one thing to another at the first place.
program::Program changed(const std::string& golden, const std::string& from, const std::string& to) {
  std::string text = program::golden_text(golden);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return program::programs_from_text(text.replace(at, from.size(), to))[0];
}

void expect_refused(const std::string& golden, const std::string& from, const std::string& to,
                    const std::string& message) {
  try {
    bind(*model_of_golden(golden), changed(golden, from, to));
    ADD_FAILURE() << "nothing was thrown: " << to;
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(Binding, AcceptsGoldensAsTheyStand) {
  for (const char* golden : {"dp2_fast", "dp2_feedback", "dp2_lamb", "dp2_muon", "dp2_sharded", "pp2_1f1b",
                             "pp2_zero_bubble", "ps_sync"})
    for (const program::Program& program : program::load_golden(golden))
      EXPECT_NO_THROW(bind(*model_of_golden(golden), program)) << golden;
}

TEST(Binding, RefusesAMatrixWithoutRoomOrInPart) {
  const std::string update = "updates parameters:param.0 state:state.0[0+128] state.1:state.0[128+128]";
  expect_refused("dp2_muon", update + " writes temporary:muon", update + " writes temporary:muon[0+64]",
                 "64 bytes");
  expect_refused("dp2_muon", update + " writes temporary:muon", update, "temporary");
  expect_refused("dp2_muon", " whole=262144 uses", " uses", "'fc.weight' as a matrix");
  expect_refused("dp2_muon",
                 "reads gradients:grad.0 verdict:verdict[0+32] verdict.1:verdict[32+32] "
                 "predicate:verdict[48+8] constants:constants " +
                     update,
                 "reads gradients:grad.0[0+64] verdict:verdict[0+32] verdict.1:verdict[32+32] "
                 "predicate:verdict[48+8] constants:constants "
                 "updates parameters:param.0[0+64] state:state.0[0+64] state.1:state.0[128+64]",
                 "16 elements of 'fc.weight'");
}

TEST(Binding, RefusesResidualsOfOtherElements) {
  const std::string residual = "residual:residual.2[0+128]";
  for (const char* other : {"residual:residual.2[0+64]", "residual:residual.2[0+128]~bfloat16"})
    expect_refused(
        "dp2_feedback", residual, other,
        "step instruction 6 (cast, lane compute, segment 2) rounds 128 bytes of float32 to bfloat16");
}

TEST(Binding, RefusesAKindThatNoExecutorRuns) {
  expect_refused("dp2_fast", "7 backward @compute", "7 serve @compute",
                 "step instruction 7 (serve, lane compute, segment 0, micro-batch 0, leaf 0) cannot be run");
}

TEST(Binding, RefusesActivationsOfAnotherSize) {
  expect_refused("dp2_fast", "output.2:act.0.mb0", "output.2:act.0.mb0[0+128]",
                 "step instruction 2 (forward, lane compute, segment 0, micro-batch 0, leaf 0) has an "
                 "operand 'output 2' of 128 bytes of "
                 "float32; the model's has 256 of float32");
  expect_refused("dp2_fast", "reads input.4:act.1.mb0", "reads input.4:act.1.mb0~int32",
                 "operand 'input 4' of 256 bytes of int32; the model's has 256 of float32");
  expect_refused("dp2_fast", "output_gradient.4:dact.1.mb0", "output_gradient.4:dact.1.mb0[0+64]",
                 "'output_gradient 4' of 64 bytes");
}

TEST(Binding, RefusesABatchOfAnotherSize) {
  expect_refused("dp2_fast", "batch.1:labels.0~int32", "batch.1:labels.0[0+32]~int32",
                 "'batch 1' of 32 bytes of int32; the model's has 64");
}

TEST(Binding, RefusesActivationsThatNoOperandHolds) {
  expect_refused("dp2_fast", "writes output.2:act.0.mb0", "writes output.3:act.0.mb0",
                 "step instruction 2 (forward, lane compute, segment 0, micro-batch 0, leaf 0) has no "
                 "operand 'output 2'");
}

TEST(Binding, RefusesScratchThatIsTooSmall) {
  expect_refused("dp2_fast", "stash:stash.2.mb0", "stash:stash.2.mb0[0+64]",
                 "has 64 bytes of 'stash' and needs 320");
  expect_refused("dp2_fast", "temporary:tmp.mb0", "temporary:tmp.mb0[0+64]",
                 "has 64 bytes of 'temporary' and needs ");
  expect_refused("dp2_fast", "metrics:metrics", "metrics:metrics[0+16]",
                 "has 16 bytes of 'metrics' and needs 32");
}

TEST(Binding, RefusesASegmentThatTheModelLacks) {
  expect_refused("dp2_fast", "2 forward @compute segment=0", "2 forward @compute segment=7",
                 "the model has 3 segments");
}

TEST(Binding, RefusesParametersThatNoOperandHolds) {
  expect_refused("dp2_fast", "reads input:x.0~int32 parameters:param.0",
                 "reads input:x.0~int32 parameters:param.0[0+64]",
                 "has no operand 'parameters' of float32 with bytes 0+128 of param.0");
}

TEST(Binding, RefusesGradientsInANarrowerType) {
  expect_refused("dp2_fast", "gradients:grad.2", "gradients:grad.2~float16",
                 "has no operand of float32 for the gradient at bytes 0+64");
}

TEST(Binding, RefusesSumsOfUnlikeThings) {
  expect_refused("dp2_tree", "source:receive.2", "source:receive.2~int32",
                 "adds 64 bytes of int32 to 64 of float32");
  expect_refused("dp2_tree", "source:receive.2", "source:receive.2[0+32]",
                 "adds 32 bytes of float32 to 64 of float32");
}

TEST(Binding, RefusesStateThatDoesNotBelongToItsUpdate) {
  expect_refused("dp2_sharded", "state.1:state.1[262144+262144]", "state.1:state.1[262144+131072]",
                 "has an operand 'state 1' of 131072 bytes of float32; the model's has 262144 of float32");
  expect_refused("dp2_sharded", " state.1:state.1[262144+262144]", "", "has no operand 'state 1'");
  expect_refused("dp2_sharded", " state.1:state.1[262144+262144]",
                 " state.1:state.1[262144+262144] state.2:state.0[0+262144]",
                 "has 3 slots of state; the optimizer has 2");
}

TEST(Binding, RefusesStateThatAnUpdateOfThisOptimizerDoesNotMove) {
  // LAMB's proposal has moved it; Adam's moves nothing else.
  expect_refused("dp2_lamb",
                 " state:state.1[0+262144] state.1:state.1[262144+262144] updates parameters.1:param.1",
                 " updates state:state.1[0+262144] state.1:state.1[262144+262144] parameters.1:param.1",
                 "writes slot 0 of its state");
  expect_refused("dp2_sharded",
                 "constants:constants updates parameters.1:param.1[0+262144] state:state.1[0+262144]",
                 "constants:constants state:state.1[0+262144] updates parameters.1:param.1[0+262144]",
                 "only reads slot 0 of its state");
}

TEST(Binding, RefusesScalesWithoutTheSumsThatTheirFormulaReads) {
  const std::string gradients = "reads chunks:sums[0+40]~float64 ",
                    parameters = "chunks.1:sums[40+40]~float64 ", updates = "chunks.2:proposed~float64 ";
  expect_refused("dp2_lamb", gradients + parameters + updates, gradients + parameters, "no operand chunks.2");
  expect_refused("dp2_lamb", gradients + parameters + updates, gradients + updates, "no operand chunks.1");
  expect_refused("dp2_lamb", gradients + parameters + updates, "reads " + parameters + updates,
                 "no operand chunks.0");
}

TEST(Binding, RefusesPartsOfANormThatCutAChunk) {
  expect_refused("dp2_sharded", "gradients:grad.0[0+262144]", "gradients:grad.0[0+262080]",
                 "fc.weight: expected whole chunks of 65536 elements");
}

TEST(Binding, RefusesADigestOfPartOfAParameter) {
  const auto model = model_of_golden("dp2_boundary");
  program::Program program = program::load_golden("dp2_boundary")[0];
  const int lane = program.add_lane("compute", program::LaneKind::compute);
  const int digests = program.add_buffer("digests", program::Space::scalars, program::Category::staging, 16);
  program::Instruction digest;
  digest.kind = program::InstructionKind::digest;
  digest.lane = lane;
  digest.operands = {
      {program::Role::parameters, 0, program::Access::read, program.whole(program.parameters[0].buffer)},
      {program::Role::chunks, 0, program::Access::write, program.whole(digests)}};
  program.instructions = {digest};
  EXPECT_NO_THROW(bind(*model, program));
  program::Program half = program;
  half.parameters[0].held = tensor::Part::range(0, 12);
  EXPECT_THROW(bind(*model, half), InternalError);
  program.instructions[0].operands[0].range.size_bytes -= 4;
  EXPECT_THROW(bind(*model, program), InternalError);
}

}  // namespace
}  // namespace lockstep::train
