#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/presets.h"
#include "parallel/step_programs.h"
#include "program/memory/memory_plan.h"
#include "proof/checker.h"

namespace lockstep::parallel {
namespace {

// Steps of thousands of micro-batches: planned and proven whole, in well under a second
// (scripts/bench_compile.sh).
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kMany = 512;
#else
constexpr int kMany = 4096;
#endif
constexpr int kStateSlots = 2;

/// One worker's step of a small GPT of several segments, planned.
class LongStep : public testing::Test {
 protected:
  struct Planned {
    program::Program program;
    program::MemoryPlan plan;
  };

  Planned step(int leaves, int micro_batches_per_leaf) const {
    const ParallelOptions parallel{.reduction = leaves > 1 ? layout::Reduction::reproducible
                                                           : layout::Reduction::fast};
    const layout::Ownership ownership(graph_, partition_, {.workers = 1, .state_slots = kStateSlots});
    const ProgramPlan plan{.graph = graph_,
                           .partition = partition_,
                           .training = training_,
                           .evaluation = evaluation_,
                           .division = layout::divide_batch(int64_t{leaves} * micro_batches_per_leaf, 1,
                                                            leaves, parallel.reduction, 1),
                           .parallel = parallel,
                           .ownership = ownership,
                           .shares = ownership.shares(),
                           .state_slots = kStateSlots};
    Planned result{compile_step(plan, 0), {}};
    program::derive_dependencies(result.program);
    result.plan = program::plan_memory(result.program);
    return result;
  }

  const model::Graph graph_ = model::make_graph(
      model::make_gpt({.vocabulary = 11, .context = 6, .layers = 2, .heads = 2, .width = 8}));
  const model::Partition partition_ = model::make_partition(graph_, 2048);
  const program::ModelCode training_{graph_, partition_, {.micro_batch = 1}};
  const program::ModelCode evaluation_{graph_, partition_, {.micro_batch = 1, .training = false}};
};

std::vector<std::string> messages(const program::Program& program) {
  std::vector<std::string> list;
  for (const auto& finding : proof::check_programs({&program, 1})) list.push_back(finding.message);
  return list;
}

TEST_F(LongStep, IsProvenAndTakesNoMoreMemoryThanAShortOne) {
  ASSERT_GE(partition_.segments.size(), 3u);
  const Planned brief = step(1, 8), longer = step(1, kMany);
  EXPECT_EQ(longer.plan.category_bytes, brief.plan.category_bytes);
  EXPECT_EQ(longer.plan.space_bytes, brief.plan.space_bytes);
  EXPECT_GE(longer.program.instructions.size(), static_cast<size_t>(kMany) * 7);
  EXPECT_THAT(messages(longer.program), testing::IsEmpty());
}

TEST_F(LongStep, IsProvenWithManyLeaves) {
  const int leaves = kMany / 64;
  EXPECT_THAT(messages(step(leaves, 64).program), testing::IsEmpty());
  EXPECT_THAT(messages(step(kMany, 1).program), testing::IsEmpty());
}

TEST_F(LongStep, IsRefusedIfOneMicroBatchOverwritesTheOthers) {
  program::Program program = step(1, kMany).program;
  const auto wrong = std::find_if(
      program.instructions.begin(), program.instructions.end(), [](const program::Instruction& i) {
        return i.kind == program::InstructionKind::backward && i.segment == 0 && i.micro_batch == kMany - 1;
      });
  ASSERT_NE(wrong, program.instructions.end());
  wrong->accumulate = false;
  for (program::Operand& operand : wrong->operands)
    if (operand.role == program::Role::gradients) operand.access = program::Access::write;
  EXPECT_THAT(messages(program),
              testing::Contains(testing::HasSubstr("missing u0:l0[m0], u0:l0[m1], u0:l0[m2]")));
}

TEST_F(LongStep, IsRefusedIfAMicroBatchReadsTheActivationOfAnother) {
  program::Program program = step(1, kMany).program;
  const auto stash_of = [&](int micro_batch) {
    for (program::Instruction& i : program.instructions)
      if (i.kind == program::InstructionKind::backward && i.micro_batch == micro_batch)
        for (program::Operand& operand : i.operands)
          if (operand.role == program::Role::stash) return &operand;
    return static_cast<program::Operand*>(nullptr);
  };
  ASSERT_NE(stash_of(kMany / 2), nullptr);
  stash_of(kMany / 2)->range = stash_of(kMany / 4)->range;
  EXPECT_THAT(messages(program), testing::Contains(testing::HasSubstr("has overwritten")));
}

}  // namespace
}  // namespace lockstep::parallel
