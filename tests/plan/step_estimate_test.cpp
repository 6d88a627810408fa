#include "plan/step_estimate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/hash.h"
#include "base/text.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "model/node_times.h"
#include "plan/plan_testing.h"
#include "plan/stage_table.h"

namespace lockstep::plan {
namespace {

using ::testing::HasSubstr;

double estimate(const std::string& layout, int64_t micro_batch = 2) {
  const compile::CompileOptions options = gpt_options(layout, micro_batch);
  return estimate_step(compile::CompiledRun(options, facts_of(options)));
}

TEST(StepEstimate, IsAllPassesOfAllMicroBatches) {
  const auto shared = gpt_options("dp=1").graph;
  const model::Graph& graph = *shared;
  double all = 0;
  for (const model::NodeTime& node : model::estimated_times(graph, 2)) all += node.all();
  EXPECT_NEAR(estimate("dp=1"), 8 * all, 1e-6 * all);
  EXPECT_NEAR(estimate("dp=2"), 4 * all, 1e-6 * all);
}

TEST(StepEstimate, OfStagesHoldsTheirWaiting) {
  const double one = estimate("dp=1"), two = estimate("dp=1,pp=2");
  // 8 micro-batches on two stages take 9 of 16 turns, if the stages were equal.
  EXPECT_GE(two, one * 9 / 16);
  EXPECT_LE(two, one * 0.65);
  EXPECT_LT(estimate("dp=1,pp=2,schedule=zero_bubble"), two);
  EXPECT_LT(estimate("dp=1,pp=2,schedule=interleaved"), two);
}

TEST(StepEstimate, HoldsWhatIsComputedAgain) {
  EXPECT_GT(estimate("dp=1,recompute=full"), estimate("dp=1"));
  EXPECT_LT(estimate("dp=1,recompute=full"), 1.5 * estimate("dp=1"));
  EXPECT_GT(estimate("dp=1,pp=4,recompute=full"), estimate("dp=1,pp=4"));
}

TEST(StepEstimate, OfAProfileIsInSecondsAndHasUpdates) {
  compile::CompileOptions options = gpt_options("dp=1", 2);
  options.parallel.profile = profile_of(options);
  const compile::CompiledRun run(options, facts_of(options));
  const auto nodes = static_cast<double>(run.graph().nodes.size());
  const auto parameters = static_cast<double>(run.graph().parameter_count());
  EXPECT_NEAR(estimate_step(run), 16 * 3e-3 * (nodes + 9) + 1e-6 * parameters, 1e-9);
  EXPECT_THAT(describe_step(run), Mentions(human_seconds(estimate_step(run)) + " ... p\n"));
  EXPECT_EQ(describe_step(compile::CompiledRun(gpt_options("dp=1", 2), facts_of(options))), "");
  options = gpt_options("dp=2,shard=optimizer", 2);
  options.parallel.profile = profile_of(options);
  const compile::CompiledRun two(options, facts_of(options));
  EXPECT_NEAR(estimate_step(two),
              8 * 3e-3 * (nodes + 9) + 1e-6 / 4 *
                                           static_cast<double>(std::max(two.ownership().owned_bytes(0),
                                                                        two.ownership().owned_bytes(1))),
              1e-9);
}

TEST(StepEstimate, StagesAreDividedByTheProfile) {
  compile::CompileOptions options = gpt_options("dp=1,pp=2", 2);
  const auto last_layers = [&] {
    return summarize_pipeline(compile::CompiledRun(options, facts_of(options))).pieces;
  };
  const auto estimated = last_layers();
  options.parallel.profile = profile_of(options);
  const auto measured = last_layers();
  EXPECT_NE(measured[0].last_layer, estimated[0].last_layer);
  // Nodes of 3 ms, and one of 30: within the longest node of each other.
  EXPECT_NEAR(measured[0].time, 0.5, 0.1);
}

TEST(StepEstimate, OfAnotherRunsProfileIsRefused) {
  compile::CompileOptions options = gpt_options("dp=1", 2);
  options.parallel.profile = profile_of(options);
  options.parallel.intra_op_threads = 2;
  EXPECT_THROW(compile::CompiledRun(options, facts_of(options)), ConfigError);
  options.parallel.intra_op_threads = 1;
  options.parallel.profile->model = "another";
  EXPECT_THROW(compile::CompiledRun(options, facts_of(options)), ConfigError) << "without stages, too";
  options.parallel.profile = profile_of(options);
  options.parallel.profile->device = "cuda";
  try {
    const compile::CompiledRun run(options, facts_of(options));
    FAIL() << "it was taken";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), Mentions("profile p: ... cuda ... cpu"));
  }
}

TEST(StepEstimate, OfSmallerMicroBatchesReadsWeightsMoreOften) {
  EXPECT_GT(estimate("dp=1", 1), estimate("dp=1", 8));
}

}  // namespace
}  // namespace lockstep::plan
