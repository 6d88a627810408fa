// Frozen layers, groups of parameters and moving averages: in every layout they train to the same bits.

#include <gtest/gtest.h>

#include "compile/compiled_run.h"
#include "model/graph.h"
#include "train/loop/divided_models.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

const std::string kAverage = "optimizer.ema={decay: 0.75 start_step: 2 evaluate: true}";
const std::string kGroups =
    "optimizer.groups={parameters: \"*.weight\" learning_rate_factor: 0.5 weight_decay: 0.2}";
const std::string kSgd = "optimizer.sgd={momentum: 0.9}";

int parameter_of(const config::RunConfig& config, const std::string& name) {
  const auto graph = model::make_graph(config.model);
  const auto found = std::ranges::find(graph.parameters, name, &model::Parameter::name);
  EXPECT_NE(found, graph.parameters.end()) << name;
  return static_cast<int>(found - graph.parameters.begin());
}

class OptimizerFeatures : public testing::TestWithParam<ModelCase> {};

TEST_P(OptimizerFeatures, TrainToTheSameBitsInEveryLayout) {
  const config::RunConfig config = GetParam().config();
  const Trace one = train_on_threads(config, 1);
  for (const char* layout :
       {"dp=2", "dp=3,shard=optimizer", "dp=4,shard=optimizer", "dp=2,sync=ps,servers=1",
        "dp=3,sync=ps,servers=2", "dp=1,pp=2", "dp=2,pp=2,schedule=zero_bubble,shard=optimizer",
        "dp=1,recompute=full", "dp=2,pp=2,sync=ps,servers=2,placement=colocated",
        "dp=2,sync=ps,mode=stale,bound=0"})
    EXPECT_EQ(trace_of(config, layout), one) << layout;
}

INSTANTIATE_TEST_SUITE_P(
    All, OptimizerFeatures,
    testing::Values(
        ModelCase{"mlp_groups", kMlp, {kGroups, kAverage}},
        ModelCase{"mlp_frozen_front", kMlp, {"model.frozen=[\"fc1\"]", kAverage}},
        ModelCase{"mlp_frozen_middle", kMlp, {"model.frozen=[\"fc2\"]", kSgd, kAverage}},
        ModelCase{"mlp_small_buckets", kMlp, {"model.frozen=[\"fc1\", \"fc2\"]", "parallel.bucket_bytes=1"}},
        ModelCase{"mlp_float16", kMlp, {"model.frozen=[\"fc2\"]", "precision.compute=FLOAT16", kAverage}},
        ModelCase{"lenet_norms", kLenet, {"model.frozen=[\"bn1\", \"conv2\"]", kGroups}},
        ModelCase{
            "lenet_bfloat16", kLenet, {"model.frozen=[\"conv*\"]", "precision.compute=BFLOAT16", kAverage}},
        ModelCase{"gpt_frozen_front",
                  kGpt,
                  {"model.frozen=[\"wte\", \"wpe\", \"lm_head\", \"h.0.ln_1\"]", kAverage}},
        ModelCase{"gpt_frozen_end", kGpt, {"model.frozen=[\"h.0.mlp.*\", \"ln_f\"]", kGroups}}),
    [](const auto& info) { return info.param.name; });

TEST(FrozenLayers, NeitherChangeNorChangeTheGradientsOfOthers) {
  for (const auto& [model, frozen] :
       {std::pair(kMlp, "fc1"), std::pair(kMlp, "fc2"), std::pair(kLenet, "bn1"), std::pair(kLenet, "conv2"),
        std::pair(kGpt, "h.0.*")}) {
    const std::vector<std::string> once = {"optimizer.sgd={}", "trainer.clip_norm=0", "trainer.steps=1"};
    auto some = once;
    some.push_back(std::string("model.frozen=[\"") + frozen + "\"]");
    const config::RunConfig config = config_of(model, some);
    const auto graph = model::make_graph(config.model);
    const Trace all = train_on_threads(config_of(model, once), 1), others = train_on_threads(config, 1);
    auto longer = some;
    longer[2] = "trainer.steps=4";
    const Trace later = train_on_threads(config_of(model, longer), 1);
    for (size_t p = 0; p < graph.parameters.size(); ++p) {
      const auto& name = graph.parameters[p].name;
      if (graph.parameters[p].frozen) {
        // A bias before a batch norm does not learn anyway.
        if (name.ends_with(".weight")) EXPECT_NE(others.parameters[p], all.parameters[p]) << name;
        EXPECT_EQ(others.parameters[p], later.parameters[p]) << name;
      } else {
        EXPECT_EQ(others.parameters[p], all.parameters[p]) << name;
      }
    }
  }
}

TEST(FrozenLayers, TakeNeitherGradientsNorStateNorActivations) {
  const auto bytes_of = [](const std::vector<std::string>& overrides, program::Category category) {
    const compile::CompiledRun run = compile_run(config_of(kMlp, overrides), {.world_size = 1});
    return run.compile(0).step_plan.category_bytes[static_cast<size_t>(category)];
  };
  using program::Category;
  const std::vector<std::string> frozen = {"model.frozen=[\"fc1\"]"};
  const int64_t fc1 = 4 * (256 * 300 + 300);
  // All of them but padding to 64 bytes.
  EXPECT_LE(bytes_of(frozen, Category::optimizer_state), bytes_of({}, Category::optimizer_state) - 2 * fc1);
  EXPECT_LT(bytes_of(frozen, Category::gradients), bytes_of({}, Category::gradients) - fc1);
  EXPECT_LT(bytes_of(frozen, Category::activations), bytes_of({}, Category::activations));
}

TEST(Averages, AreWhatIsEvaluatedWhereAsked) {
  const std::string silent = "optimizer.ema={decay: 0.75 start_step: 2}";
  const Trace plain = train_on_threads(config_of(kMlp), 1),
              kept = train_on_threads(config_of(kMlp, {silent}), 1),
              evaluated = train_on_threads(config_of(kMlp, {kAverage}), 1);
  EXPECT_EQ(kept, plain);  // an average that nobody reads changes nothing
  EXPECT_NE(evaluated.eval_loss, plain.eval_loss);
  EXPECT_EQ(evaluated.parameters, plain.parameters);
  EXPECT_EQ(evaluated.losses, plain.losses);
}

TEST(Averages, OfStepsThatOverflowStayWhereTheyAre) {
  config::RunConfig config = config_that_overflows();
  config.optimizer.average = {.enabled = true, .decay = 0.75};
  config.evaluates_average = true;
  const Trace one = train_on_threads(config, 1);
  EXPECT_TRUE(std::isfinite(one.eval_loss));
  EXPECT_EQ(train_on_threads(config, 2), one);
  EXPECT_EQ(trace_of(config, "dp=2,shard=optimizer"), one);
}

TEST(Groups, ChangeTheirParametersAlone) {
  const std::vector<std::string> once = {"optimizer.sgd={}", "trainer.clip_norm=0", "trainer.steps=1",
                                         "optimizer.weight_decay=0"};
  auto half = once;
  half.push_back("optimizer.groups={parameters: \"fc2.weight\" learning_rate_factor: 0.5}");
  const config::RunConfig config = config_of(kMlp, half);
  auto start = once;
  start.push_back("optimizer.groups={parameters: \"*\" learning_rate_factor: 1e-30}");
  const Trace all = train_on_threads(config_of(kMlp, once), 1), grouped = train_on_threads(config, 1),
              before = train_on_threads(config_of(kMlp, start), 1);
  const int fc2 = parameter_of(config, "fc2.weight");
  for (int p = 0; p < static_cast<int>(all.parameters.size()); ++p)
    EXPECT_EQ(grouped.parameters[static_cast<size_t>(p)] == all.parameters[static_cast<size_t>(p)], p != fc2)
        << p;
  const auto& from = before.parameters[static_cast<size_t>(fc2)];
  for (size_t i = 0; i < from.size(); ++i)
    EXPECT_NEAR(grouped.parameters[static_cast<size_t>(fc2)][i] - from[i],
                (all.parameters[static_cast<size_t>(fc2)][i] - from[i]) / 2, 1e-7);
}

}  // namespace
}  // namespace lockstep::train
