// Samples whose labels count for nothing: by the model's ignore_index, or being negative.

#include <gtest/gtest.h>

#include <optional>

#include "data/own_samples.h"
#include "lockstep/error.h"
#include "train/session_ranks.h"
#include "train/worker/batches.h"

namespace lockstep::train {
namespace {

constexpr const char* kConfig = R"(
format_version: 1
model {
  input { name: "image" shape: [2, 2, 1] }
  input { name: "label" type: INT32 }
  layer { name: "flat" input: "image" flatten {} }
  layer { name: "a" linear { units: 6 } }
  layer { name: "t" tanh {} }
  layer { name: "b" linear { units: 3 } }
  layer { name: "loss" input: "b" input: "label" softmax_cross_entropy { ignore_index: 255 } }
}
data { synthetic { samples: 16 eval_samples: 8 classes: 3 shape: 2 shape: 2 shape: 1 } shuffle: false }
trainer { steps: 2 global_batch: 8 eval_every_steps: 1 early_stopping: 1 check_every_steps: 0 }
optimizer { learning_rate: 0.01 sgd {} }
parallel { reduction: FAST }
)";

std::shared_ptr<const data::Dataset> labelled(const std::vector<int32_t>& labels) {
  std::vector<float> images(4 * labels.size());
  for (size_t i = 0; i < images.size(); ++i) images[i] = 0.1f * static_cast<float>(i % 7);
  return SamplesAccess::dataset_of(Samples::in_memory({{"image", {2, 2, 1}, images}, {"label", {}, labels}}));
}

config::RunConfig config_with(const std::vector<int32_t>& train, const std::vector<int32_t>& eval) {
  config::RunConfig config = config::parse_run_config(kConfig, "test", {});
  config.data.kind = data::DataKind::own;
  config.data.own_train = labelled(train);
  config.data.own_eval = labelled(eval);
  return config;
}

constexpr const char* kLayoutsOfLabels[] = {"dp=1",
                                            "dp=2",
                                            "dp=2,shard=optimizer",
                                            "dp=1,pp=2",
                                            "dp=2,sync=ps",
                                            "dp=2,sync=ps,mode=stale",
                                            "dp=2,sync=ps,mode=async"};

TEST(IgnoredLabels, OfAWholeBatchLeaveAStepWithoutALoss) {
  // The first batch counts, the second does not.
  const auto config =
      config_with({0, 1, 2, 0, 1, 2, 0, 1, 255, -1, 255, -7, 255, 255, 255, 255}, {0, 1, 2, 0, 1, 2, 0, 1});
  for (const char* layout : kLayoutsOfLabels) {
    const EndedRank first = train_sessions(config, layout)[0];
    ASSERT_EQ(first.records.size(), 2u) << layout;
    EXPECT_TRUE(first.records[0].has_loss()) << layout;
    EXPECT_FALSE(first.records[1].has_loss()) << layout;
    EXPECT_EQ(first.outcome.train_loss, std::nullopt) << layout;
    EXPECT_TRUE(first.outcome.evaluation->has_loss()) << layout;
  }
}

TEST(IgnoredLabels, OfAWholeEvaluationLeaveItWithoutALossAndItIsNoBest) {
  const auto config = config_with({0, 1, 2, 0, 1, 2, 0, 1, 0, 1, 2, 0, 1, 2, 0, 1}, {255, 255, -1, 255});
  for (const char* layout : kLayoutsOfLabels) {
    const TrainingOutcome outcome = train_sessions(config, layout)[0].outcome;
    ASSERT_TRUE(outcome.evaluation) << layout;
    EXPECT_FALSE(outcome.evaluation->has_loss()) << layout;
    EXPECT_EQ(outcome.evaluations, EvaluationHistory{}) << layout;
    EXPECT_FALSE(outcome.ended_early) << layout;
    EXPECT_TRUE(outcome.train_loss) << layout;
  }
}

TEST(IgnoredLabels, NeedNoOutputsOfTheModel) {
  for (const int32_t label : {3, 256})
    EXPECT_THROW(train_sessions(config_with({0, 1, label, 2}, {0}), "dp=1"), ConfigError) << label;
  EXPECT_NO_THROW(train_sessions(config_with({0, 1, 255, 2, 0, 1, 255, 2}, {255}), "dp=1"));
}

}  // namespace
}  // namespace lockstep::train
