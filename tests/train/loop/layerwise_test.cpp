// Optimizers that scale each parameter's update by norms of its own: LARS, LAMB and adaptive clipping. In
// every layout they train to the same bits, whoever holds which part of a parameter.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/error.h"
#include "train/loop/divided_models.h"
#include "train/loop/resumed_layouts.h"
#include "train/session_ranks.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

using ::testing::HasSubstr;

const std::string kLars = "optimizer.lars={trust: 0.01 epsilon: 0.001}";
const std::string kLamb = "optimizer.lamb={}";
const std::string kClip = "optimizer.adaptive_clip={clipping: 0.02}";
const std::string kSgd = "optimizer.sgd={momentum: 0.9}";
const std::string kAverage = "optimizer.ema={decay: 0.75 start_step: 2 evaluate: true}";
const std::string kFast = "optimizer.learning_rate=1";
const std::string kGroups =
    "optimizer.groups={parameters: \"*.weight\" learning_rate_factor: 0.5 weight_decay: 0.2}";

class Layerwise : public testing::TestWithParam<ModelCase> {};

TEST_P(Layerwise, TrainsToTheSameBitsInEveryLayout) {
  const config::RunConfig config = GetParam().config();
  const Trace one = train_on_threads(config, 1);
  for (const char* layout :
       {"dp=2", "dp=3,shard=optimizer", "dp=4,shard=optimizer", "dp=2,sync=ps,servers=1",
        "dp=3,sync=ps,servers=2", "dp=2,sync=ps,servers=2,assign=whole", "dp=1,pp=2",
        "dp=2,pp=2,schedule=zero_bubble,shard=optimizer", "dp=1,recompute=full",
        "dp=2,pp=2,sync=ps,servers=2,placement=colocated", "dp=1,pp=2,sync=ps,servers=2,assign=whole",
        "dp=2,sync=ps,servers=2,mode=stale,bound=0"})
    EXPECT_EQ(trace_of(config, layout), one) << layout;
}

/// Of parameters, as a part of their norm. Formulas that round differently come to some 1e-7.
double distance_of(const Trace& one, const Trace& other) {
  double difference = 0, all = 0;
  for (size_t p = 0; p < one.parameters.size(); ++p)
    for (size_t i = 0; i < one.parameters[p].size(); ++i) {
      const double a = one.parameters[p][i], b = other.parameters[p][i];
      difference += (a - b) * (a - b);
      all += a * a;
    }
  return std::sqrt(difference / all);
}

TEST_P(Layerwise, ScalesByNorms) {
  // With scales of 1 this would be another training, equal but for rounding.
  const Trace one = train_on_threads(GetParam().config(), 1);
  std::vector<std::string> plain;
  for (const std::string& text : GetParam().overrides)
    plain.push_back(text == kLars ? kSgd : text == kLamb ? "optimizer.adamw={}" : text);
  std::erase(plain, kClip);
  const Trace other = train_on_threads(config_of(GetParam().model, plain), 1);
  EXPECT_GT(distance_of(one, other), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(
    All, Layerwise,
    testing::Values(
        ModelCase{"mlp_lars", kMlp, {kLars, kFast}},
        ModelCase{"mlp_lars_average", kMlp, {kLars, kFast, kAverage, kGroups}},
        ModelCase{"mlp_lamb", kMlp, {kLamb}},
        ModelCase{"mlp_lamb_small_buckets", kMlp, {kLamb, "parallel.bucket_bytes=1"}},
        ModelCase{"mlp_clip", kMlp, {kSgd, kClip}},
        ModelCase{"mlp_lamb_float16", kMlp, {kLamb, "precision.compute=FLOAT16", kAverage}},
        ModelCase{"mlp_lamb_frozen", kMlp, {kLamb, "model.frozen=[\"fc2\"]"}},
        ModelCase{"lenet_lars_norms", kLenet, {kLars, kFast}},
        ModelCase{"lenet_lamb_bfloat16", kLenet, {kLamb, "precision.compute=BFLOAT16", kGroups}},
        ModelCase{"gpt_tied_lamb", kGpt, {kLamb, kAverage}}, ModelCase{"gpt_tied_clip", kGpt, {kClip}},
        ModelCase{"gpt_lamb_not_clipped", kGpt, {kLamb, "trainer.clip_norm=0", "trainer.nonfinite=IGNORE"}}),
    [](const auto& info) { return info.param.name; });

TEST(LayerwiseRuns, GoOnInOtherLayouts) {
  const std::vector<std::pair<std::string, std::string>> layouts = {
      {"dp=2,shard=optimizer", "dp=1"},
      {"dp=1", "dp=3,sync=ps,servers=2"},
      {"dp=2,sync=ps,servers=2,assign=whole", "dp=2,pp=2,shard=optimizer"}};
  expect_same_bits_across(config_of(kMlp, {kLamb, kAverage}), "lamb", layouts);
  expect_same_bits_across(config_of(kGpt, {kLars, kFast}), "lars", layouts);
}

TEST(LayerwiseRuns, OfStepsThatOverflowMoveNothing) {
  for (const std::string& optimizer : {kLars, kLamb}) {
    config::RunConfig config = config_that_overflows();
    const config::RunConfig chosen = config_of(kMlp, {optimizer});
    config.optimizer = chosen.optimizer;
    const Trace one = train_on_threads(config, 1);
    EXPECT_TRUE(std::isfinite(one.eval_loss));
    for (const char* layout : {"dp=2", "dp=2,shard=optimizer", "dp=2,sync=ps,servers=1"})
      EXPECT_EQ(trace_of(config, layout), one) << optimizer << ", " << layout;
  }
}

TEST(LayerwiseRuns, OfLanesThatRunAtOnceGiveTheSameBits) {
  const config::RunConfig config = config_of(kMlp, {kLamb});
  const Trace one = train_on_threads(config, 1);
  for (const char* layout : {"dp=2,shard=optimizer", "dp=2,sync=ps,servers=1", "dp=1,pp=2"})
    EXPECT_EQ(trace_of(config, layout, {.asynchronous = device::AsyncCpuOptions{}}), one) << layout;
}

/// Where workers do not wait for each other, a server needs whole parameters.
TEST(LayerwiseSessions, NeedWholeParameters) {
  const std::string fast = "parallel.reduction=FAST";
  for (const std::string& optimizer : {kLars, kLamb, kClip}) {
    for (const char* mode : {"mode=stale,bound=2", "mode=async"}) {
      const std::string layout = std::string("dp=2,sync=ps,servers=2,") + mode;
      // Its first layer's weight is divided between two servers.
      const config::RunConfig config = config_of(kMlp, {optimizer, fast, "model.mlp.hidden=[600, 270]"});
      try {
        compile_run(with(config, layout), {.world_size = processes_of(layout)});
        ADD_FAILURE() << layout << " should be refused with " << optimizer;
      } catch (const ConfigError& error) {
        EXPECT_THAT(error.what(), HasSubstr("assign=whole"));
      }
      const std::string whole = layout + ",assign=whole";
      compile_run(with(config, whole), {.world_size = processes_of(whole)}).check();
    }
  }
}

/// Small ones are never divided.
TEST(LayerwiseSessions, NeedNothingWhereNoParameterIsDivided) {
  const std::string layout = "dp=2,sync=ps,servers=2,mode=async";
  compile_run(with(config_of(kLenet, {kLamb, "parallel.reduction=FAST"}), layout),
              {.world_size = processes_of(layout)})
      .check();
}

/// Nothing is asked of the step as a whole, so that pushes leave as gradients come.
TEST(LayerwiseSessions, ThatNeitherClipNorSkipHaveTheBitsOfOneProcess) {
  const config::RunConfig config =
      config_of(kMlp, {kLamb, "parallel.reduction=FAST", "trainer.clip_norm=0", "trainer.nonfinite=IGNORE",
                       "trainer.virtual_replicas=1", "trainer.micro_batch=12"});
  const EndedRank one = train_sessions(config, "dp=1")[0];
  const EndedRank ended = train_sessions(config, "dp=1,sync=ps,servers=2,assign=whole,mode=async")[0];
  EXPECT_EQ(ended.parameters_hash, one.parameters_hash);
  EXPECT_EQ(ended.state_hash, one.state_hash);
}

/// One worker and one server: each push is the whole step, so that a session has the bits of one process.
TEST(LayerwiseSessions, OfOneWorkerHaveTheBitsOfOneProcess) {
  for (const std::string& optimizer : {kLars, kLamb, kClip}) {
    const config::RunConfig config =
        config_of(kMlp, {optimizer, "parallel.reduction=FAST", "trainer.clip_norm=0",
                         "trainer.virtual_replicas=1", "trainer.micro_batch=12"});
    const EndedRank one = train_sessions(config, "dp=1")[0];
    for (const char* layout : {"dp=1,sync=ps,mode=stale,bound=1", "dp=1,sync=ps,mode=async",
                               "dp=1,sync=ps,servers=2,assign=whole,mode=async"}) {
      const EndedRank ended = train_sessions(config, layout)[0];
      EXPECT_EQ(ended.parameters_hash, one.parameters_hash) << optimizer << ", " << layout;
      EXPECT_EQ(ended.state_hash, one.state_hash) << optimizer << ", " << layout;
    }
  }
}

}  // namespace
}  // namespace lockstep::train
