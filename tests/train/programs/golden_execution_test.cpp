// The golden programs, which the checker accepts as they stand and finds wrong when broken, are executed as
// they stand: what is proven and what is run are the same.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "lockstep/error.h"
#include "program/golden_programs.h"
#include "proof/call_proof.h"
#include "proof/checker.h"
#include "proof/model_flow.h"
#include "train/programs/golden_ranks.h"

namespace lockstep::train {
namespace {

using testing::HasSubstr;

/// The first instruction that no executor runs, over all ranks, as errors name it; "" where there is none.
std::string not_runnable(const program::Program& program) {
  for (size_t i = 0; i < program.instructions.size(); ++i)
    if (!run::is_runnable(program.instructions[i].kind))
      return program::describe(program, static_cast<int>(i));
  return "";
}

void expect_equal(const GoldenOutcome& golden, const GoldenOutcome& one) {
  EXPECT_EQ(golden.losses, one.losses);
  EXPECT_EQ(golden.counts, one.counts);
  EXPECT_TRUE(golden.norms.empty() || golden.norms == one.norms);
  ASSERT_EQ(golden.parameters.size(), one.parameters.size());
  for (const auto& [name, values] : one.parameters) EXPECT_TRUE(golden.parameters.at(name) == values) << name;
}

class GoldenExecution : public testing::TestWithParam<std::string> {
 protected:
  const std::vector<program::Program> programs_ = program::load_golden(GetParam());
  const std::unique_ptr<GoldenModel> model_ = model_of_golden(GetParam());
  /// One rank with all leaves: along the tree, to which a FAST sum of two is equal, because a + b = b + a.
  GoldenOutcome one_rank() const {
    return execute(*model_,
                   {programs_[0].name == "evaluate" ? one_rank_evaluation(*model_) : one_rank_step(*model_)});
  }
};

class RunnableGolden : public GoldenExecution {};
class RefusedGolden : public GoldenExecution {};

TEST_P(RunnableGolden, DoesWhatItsModelsGraphSays) {
  const proof::ModelFlow flow = proof::flow_of(model_->graph, model_->partition);
  for (const auto& finding : proof::check_programs(programs_, {.flow = &flow}))
    ADD_FAILURE() << finding.message;
  const auto code = model_->code(programs_[0].name == "step");
  proof::CallProof calls(*code);
  for (const program::Program& program : programs_)
    EXPECT_EQ(calls.check(program), std::vector<std::string>{}) << "rank " << program.rank;
}

TEST_P(RunnableGolden, HasTheModelsParameters) {
  for (const program::Program& program : programs_) {
    ASSERT_EQ(program.parameters.size(), model_->graph.parameters.size());
    for (size_t p = 0; p < program.parameters.size(); ++p) {
      EXPECT_EQ(program.parameters[p].name, model_->graph.parameters[p].name);
      EXPECT_EQ(program.parameters[p].size_bytes, 4 * model_->graph.parameters[p].spec.shape.count());
      EXPECT_EQ(program.parameters[p].uses.size(), model_->graph.parameters[p].uses.size());
    }
  }
}

TEST_P(RunnableGolden, GivesTheBitsOfOneRank) {
  const GoldenOutcome one = one_rank(), golden = execute(*model_, programs_);
  ASSERT_EQ(one.losses.size(), 3u);
  EXPECT_NE(one.losses[0], one.losses[2]) << "nothing is learnt and nothing loaded";
  expect_equal(golden, one);
}

TEST_P(RunnableGolden, GivesTheBitsOfOneRankWhereLanesRunAtOnce) {
  const GoldenOutcome one = one_rank();
  for (const uint64_t seed : {1, 2, 3})
    expect_equal(
        execute(*model_, programs_,
                {.asynchronous = device::AsyncCpuOptions{.jitter_seed = seed, .max_jitter_us = 200}}),
        one);
}

TEST_P(RefusedGolden, IsRefusedByNameWhenItIsBound) {
  const auto any = model_of_golden("dp1_tree");
  int refused = 0;
  for (const program::Program& program : programs_) {
    const std::string instruction = not_runnable(program);
    if (instruction.empty()) continue;
    ++refused;
    try {
      bind(*any, program);
      FAIL() << "nothing was thrown";
    } catch (const InternalError& error) {
      EXPECT_THAT(error.what(), HasSubstr(instruction + " cannot be run"));
    }
  }
  EXPECT_GT(refused, 0)
      << "an executor has every kind of its instructions: give it a model in golden_models.cpp";
}

std::vector<std::string> goldens_that(const std::function<bool(const std::string&)>& wanted) {
  std::vector<std::string> names = program::golden_names();
  std::erase_if(names, [&](const std::string& name) { return !wanted(name); });
  return names;
}
bool saves(const std::string& name) { return program::load_golden(name)[0].name == "boundary"; }
const auto kName = [](const auto& info) { return info.param; };

INSTANTIATE_TEST_SUITE_P(All, RunnableGolden, testing::ValuesIn(goldens_that([](const auto& name) {
                           return model_of_golden(name) != nullptr && !saves(name);
                         })),
                         kName);
INSTANTIATE_TEST_SUITE_P(All, RefusedGolden, testing::ValuesIn(goldens_that([](const auto& name) {
                           // Its sizes are made up: it is for the checker alone.
                           return model_of_golden(name) == nullptr && name != "dp2_fp16";
                         })),
                         kName);

/// A snapshot's bytes are those of the parts that it reads, in their order, and all ranks' parts together are
/// the model and its state, each once.
TEST(BoundaryGolden, CopiesTheModelOnceAndAgreesOnHowItWent) {
  const auto model = model_of_golden("dp2_boundary");
  for (const int failing : {-1, 0, 1}) {
    std::atomic<int64_t> copied{0};
    GoldenRun run{.iterations = 1, .saves = [=](int rank) { return rank != failing; }};
    run.look = [&](int, const program::Program& program, const run::ProgramMemory& memory) {
      const auto& operands = program.instructions[0].operands;
      const auto to = std::ranges::find(operands, program::Role::destination, &program::Operand::role);
      const std::byte* copy = memory.at(program, to->range);
      for (const auto& operand : operands) {
        if (operand.access != program::Access::read) continue;
        EXPECT_EQ(std::memcmp(copy, memory.at(program, operand.range),
                              static_cast<size_t>(operand.range.size_bytes)),
                  0);
        copy += operand.range.size_bytes;
        copied += operand.range.size_bytes;
      }
    };
    const GoldenOutcome outcome = execute(*model, program::load_golden("dp2_boundary"), run);
    EXPECT_EQ(outcome.losses, std::vector<double>{failing < 0 ? 0.0 : 1.0}) << "how many failed";
    EXPECT_EQ(copied, 2 * 128) << "parameters, and a slot of momentum";
  }
}

}  // namespace
}  // namespace lockstep::train
