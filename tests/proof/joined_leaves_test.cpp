// Micro-batches that hold several leaves of unlike numbers, whose gradients kernels fold.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "mentions.h"
#include "program/instruction_rules.h"
#include "proof/call_proof.h"
#include "proof/checker.h"
#include "proof/compiled_models.h"
#include "proof/model_flow.h"

namespace lockstep::proof {
namespace {

using Programs = std::vector<program::Program>;

constexpr auto kJoinedDevice = LOCKSTEP_CALLS_OF_GPU ? device::DeviceKind::cuda : device::DeviceKind::cpu;

/// Three workers of eight leaves of eight samples, which GPUs join, too: 2 and 1, 1 and 2, 2.
compile::CompileOptions joined_options(const ModelSpec& model, const std::string& layout) {
  compile::CompileOptions options = options_of(model, layout);
  options.global_batch = options.micro_batch = 64;
  options.virtual_replicas = 8;
  options.parallel.reduction = layout::Reduction::reproducible;
  return options;
}

Programs joined_steps() {
  const compile::CompileOptions options = joined_options(sum_model(), "dp=3");
  return steps_of(compile::CompiledRun(options, facts_of(options, kJoinedDevice)));
}

TEST(JoinedLeaves, AreProvenOfUnlikeNumbers) {
  for (const ModelSpec& model : {sum_model(), gpt_model(0.1f), lenet_model()})
    for (const char* layout :
         {"dp=1", "dp=3", "dp=5", "dp=7", "dp=3,recompute=full", "dp=3,recompute=selective",
          "dp=3,shard=optimizer", "dp=3,sync=ps,servers=1"}) {
      const compile::CompileOptions options = joined_options(model, layout);
      EXPECT_NO_THROW(compile::CompiledRun(options, facts_of(options, kJoinedDevice)).check()) << layout;
    }
}

TEST(JoinedLeaves, MakeMicroBatchesOfTheirSizes) {
  std::vector<std::pair<int, int>> found;  // first leaf and number
  for (const program::Program& program : joined_steps())
    for (const program::Instruction& i : program.instructions)
      if (i.kind == program::InstructionKind::load) found.emplace_back(i.leaf, i.leaves);
  EXPECT_THAT(found, testing::ElementsAre(std::pair(0, 2), std::pair(2, 1), std::pair(3, 1), std::pair(4, 2),
                                          std::pair(6, 2)));
}

/// `change` applied to each instruction in turn, wherever it returns true; all must be found.
void expect_all_found(const std::function<bool(program::Instruction&)>& change, int least) {
  const Programs sound = joined_steps();
  ASSERT_TRUE(check_programs(sound).empty());
  int count = 0;
  for (size_t rank = 0; rank < sound.size(); ++rank)
    for (size_t i = 0; i < sound[rank].instructions.size(); ++i) {
      Programs changed = sound;
      if (!change(changed[rank].instructions[i])) continue;
      ++count;
      EXPECT_FALSE(check_programs(changed).empty()) << program::describe(sound[rank], static_cast<int>(i));
    }
  EXPECT_GE(count, least);
}

TEST(JoinedLeaves, OfAnotherPlaceOrNumberAreFound) {
  for (const auto& [leaf, leaves] : {std::pair(1, 0), {-1, 0}, {0, 1}, {0, -1}, {1, -1}, {-1, 1}})
    expect_all_found(
        [&](program::Instruction& i) {
          if (i.kind != program::InstructionKind::load && !program::runs_segment(i.kind)) return false;
          i.leaf += leaf;
          i.leaves += leaves;
          return true;
        },
        5 * 3);
}

/// All instructions of a micro-batch agree, but not with the batch.
TEST(JoinedLeaves, OfAnotherPlaceOrNumberInAWholeMicroBatchAreFound) {
  const Programs sound = joined_steps();
  for (const auto& [leaf, leaves] : {std::pair(1, 0), {-1, 0}, {0, 1}, {0, -1}, {1, -1}, {-1, 1}})
    for (size_t rank = 0; rank < sound.size(); ++rank)
      for (const int micro_batch : {0, 1}) {
        Programs changed = sound;
        for (program::Instruction& i : changed[rank].instructions) {
          if (i.micro_batch != micro_batch) continue;
          i.leaf += leaf;
          i.leaves += leaves;
        }
        if (changed != sound) {
          EXPECT_FALSE(check_programs(changed).empty()) << rank << ", " << micro_batch;
        }
      }
}

TEST(JoinedLeaves, OfOneMicroBatchAreTheSameInEveryInstruction) {
  Programs programs = joined_steps();
  for (program::Instruction& i : programs[0].instructions)
    if (i.kind == program::InstructionKind::load && i.leaves == 2) i.leaves = 1;
  const auto findings = check_programs(programs);
  ASSERT_FALSE(findings.empty());
  EXPECT_EQ(findings[0].property, CheckFinding::Property::structure);
  EXPECT_THAT(findings[0].message, Mentions("micro-batch 0 ... 2 leaves ... 1 from 0 on in instruction 1"));
}

TEST(JoinedLeaves, WhoseMetricsAreOfAnotherNumberAreFound) {
  expect_all_found(
      [&](program::Instruction& i) {
        const bool has_loss = std::ranges::any_of(
            i.operands, [](const auto& operand) { return operand.role == program::Role::metrics; });
        if (i.kind != program::InstructionKind::forward || !has_loss) return false;
        i.leaves = 3 - i.leaves;
        return true;
      },
      5);
}

TEST(JoinedLeaves, ThatAreNoNodeAreFound) {
  Programs programs = joined_steps();
  // Rank 1 has leaf 3, then 4 and 5: 3 and 4 first would be another sum.
  for (program::Instruction& i : programs[1].instructions)
    if (i.leaf == 3) {
      i.leaves = 2;
    } else if (i.leaf == 4) {
      i.leaf = 5;
      i.leaves = 1;
    }
  EXPECT_FALSE(check_programs(programs).empty());
}

TEST(JoinedLeaves, AreNotAccumulated) {
  expect_all_found(
      [](program::Instruction& i) {
        if (!program::is_backward(i.kind) || i.leaves == 1) return false;
        i.accumulate = true;
        for (program::Operand& operand : i.operands)
          if (operand.role == program::Role::gradients) operand.access = program::Access::read_write;
        return true;
      },
      3);
}

}  // namespace
}  // namespace lockstep::proof
