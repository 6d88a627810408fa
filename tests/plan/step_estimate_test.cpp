#include "plan/step_estimate.h"

#include <gtest/gtest.h>

#include "model/pieces.h"
#include "plan/plan_testing.h"

namespace lockstep::plan {
namespace {

double estimate(const std::string& layout, int64_t micro_batch = 2) {
  const compile::CompileOptions options = gpt_options(layout, micro_batch);
  return estimate_step(compile::CompiledRun(options, facts_of(options)));
}

TEST(StepEstimate, IsAllPassesOfAllMicroBatches) {
  const model::Graph graph = model::make_graph(gpt_options("dp=1").model);
  double all = 0;
  for (const model::NodeTime& node : model::node_times(graph, 2)) all += node.all();
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

TEST(StepEstimate, OfSmallerMicroBatchesReadsWeightsMoreOften) {
  EXPECT_GT(estimate("dp=1", 1), estimate("dp=1", 8));
}

}  // namespace
}  // namespace lockstep::plan
