// Muon, which updates whole matrices: each has one owner, or every worker updates it. In every layout it
// trains to the same bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "data/test_files.h"
#include "lockstep/error.h"
#include "train/loop/divided_models.h"
#include "train/loop/resumed_layouts.h"
#include "train/session_ranks.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

const std::string kMuon = "optimizer.muon={adamw: {learning_rate: 0.002}}";
const std::string kMatching =
    "optimizer.muon={nesterov: false newton_schulz_steps: 3 scale: MATCH_ADAMW adamw: {learning_rate: 0.01 "
    "weight_decay: 0}}";
const std::string kAverage = "optimizer.ema={decay: 0.75 start_step: 2 evaluate: true}";
const std::string kGroups =
    "optimizer.groups=[{parameters: \"conv1.weight\" muon: true learning_rate_factor: 0.5}, "
    "{parameters: \"fc1.weight\" muon: false weight_decay: 0.2}]";

class Muon : public testing::TestWithParam<ModelCase> {};

TEST_P(Muon, TrainsToTheSameBitsInEveryLayout) {
  const config::RunConfig config = GetParam().config();
  const Trace one = train_on_threads(config, 1);
  for (const char* layout :
       {"dp=2", "dp=3,shard=optimizer", "dp=4,shard=optimizer", "dp=2,aggregate=host",
        "dp=2,sync=ps,servers=1", "dp=3,sync=ps,servers=2,assign=whole", "dp=1,pp=2",
        "dp=2,pp=2,schedule=zero_bubble,shard=optimizer", "dp=1,recompute=full",
        "dp=2,pp=2,sync=ps,servers=2,placement=colocated,assign=whole",
        "dp=1,pp=2,sync=ps,servers=2,assign=whole", "dp=2,sync=ps,servers=2,assign=whole,mode=stale,bound=0"})
    EXPECT_EQ(trace_of(config, layout), one) << layout;
}

/// Else matrices would be updated by AdamW.
TEST_P(Muon, IsAnotherTrainingThanAdamW) {
  const Trace one = train_on_threads(GetParam().config(), 1);
  std::vector<std::string> plain = GetParam().overrides;
  std::erase_if(plain, [](const std::string& text) { return text.starts_with("optimizer.groups"); });
  for (std::string& text : plain)
    if (text.starts_with("optimizer.muon")) text = "optimizer.adamw={beta2: 0.95}";
  const Trace other = train_on_threads(config_of(GetParam().model, plain), 1);
  EXPECT_GT(std::abs(one.losses.back() - other.losses.back()), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(
    All, Muon,
    testing::Values(
        ModelCase{"mlp", kMlp, {kMuon}},
        ModelCase{
            "mlp_small_buckets_frozen", kMlp, {kMuon, "parallel.bucket_bytes=1", "model.frozen=[\"fc1\"]"}},
        ModelCase{"lenet_groups", kLenet, {kMuon, kGroups, kAverage}},
        ModelCase{"lenet_bfloat16_matching", kLenet, {kMatching, "precision.compute=BFLOAT16"}},
        ModelCase{"gpt_tied_average", kGpt, {kMuon, kAverage}},
        ModelCase{"gpt_as_it_lands", kGpt, {kMatching, "trainer.clip_norm=0", "trainer.nonfinite=IGNORE"}}),
    [](const auto& info) { return info.param.name; });

TEST(MuonRuns, GoOnInOtherLayouts) {
  const std::vector<std::pair<std::string, std::string>> layouts = {
      {"dp=2,shard=optimizer", "dp=1"},
      {"dp=1", "dp=3,sync=ps,servers=2,assign=whole"},
      {"dp=2,sync=ps,servers=2,assign=whole", "dp=2,pp=2,shard=optimizer"}};
  expect_same_bits_across(config_of(kLenet, {kMuon, kAverage}), "muon", layouts);
}

TEST(MuonRuns, OfStepsThatOverflowMoveNothing) {
  config::RunConfig config = config_that_overflows();
  const config::RunConfig chosen = config_of(kMlp, {kMuon});
  config.optimizer = chosen.optimizer;
  config.group_rates = chosen.group_rates;
  const Trace one = train_on_threads(config, 1);
  EXPECT_TRUE(std::isfinite(one.eval_loss));
  for (const char* layout : {"dp=2", "dp=2,shard=optimizer", "dp=2,sync=ps,servers=1"})
    EXPECT_EQ(trace_of(config, layout), one) << layout;
}

TEST(MuonRuns, OfLanesThatRunAtOnceGiveTheSameBits) {
  const config::RunConfig config = config_of(kLenet, {kMuon});
  const Trace one = train_on_threads(config, 1);
  for (const char* layout : {"dp=2,shard=optimizer", "dp=2,sync=ps,servers=1", "dp=1,pp=2"})
    EXPECT_EQ(trace_of(config, layout, {.asynchronous = device::AsyncCpuOptions{}}), one) << layout;
}

TEST(MuonRuns, HaveTheSameBitsOnSeveralThreads) {
  const Trace one = train_on_threads(config_of(kMlp, {kMuon}), 1);
  EXPECT_EQ(train_on_threads(config_of(kMlp, {kMuon, "parallel.intra_op_threads=3"}), 1), one);
}

/// A matrix's mean of gradients, without their squares, would be read as AdamW's state, and the other way
/// round.
TEST(MuonRuns, DoNotGoOnFromStateThatOtherUpdatesMade) {
  const auto training = [](std::vector<std::string> optimizer) {
    optimizer.insert(optimizer.end(), {"trainer.eval_every_steps=0", "checkpoint.resume_automatic=true",
                                       "checkpoint.allow_config_change=true"});
    return config_of(kLenet, optimizer);
  };
  const std::vector<std::string> muon{kMuon}, groups{kMuon, kGroups}, adamw{"optimizer.adamw={}"};
  for (const auto& [first, second] :
       {std::pair(muon, adamw), std::pair(adamw, muon), std::pair(muon, groups), std::pair(groups, muon)}) {
    const test::TemporaryDirectory folder;
    train_until(training(first), "dp=1", 2, folder.path());
    try {
      train_until(training(second), "dp=1", 0, folder.path());
      ADD_FAILURE() << first.back() << ", then " << second.back() << " should be refused";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AnyOf(HasSubstr(".muon_mean'"), HasSubstr(".exp_avg'")));
    }
  }
}

/// Shards end on borders of parameters, so that each matrix has one owner.
TEST(MuonPlans, CutShardsBetweenParameters) {
  const std::string layout = "dp=3,shard=optimizer";
  const auto owners_of = [&](const std::string& optimizer) {
    const auto run = compile_run(with(config_of(kMlp, {optimizer}), layout), {.world_size = 3});
    int parts = 0;
    for (int rank = 0; rank < 3; ++rank)
      for (const program::ParameterPlace& place : run.compile(rank).step.parameters)
        parts += !place.owned.empty() && !place.owned.is_whole(place.elements()) ? 1 : 0;
    return parts;
  };
  EXPECT_EQ(owners_of(kMuon), 0);
  EXPECT_GT(owners_of("optimizer.adamw={}"), 0);
}

/// Each update has scratch of its largest matrix, at most.
TEST(MuonPlans, CountScratch) {
  const auto workspace_of = [](const std::string& optimizer) {
    const auto run = compile_run(config_of(kGpt, {optimizer}), {.world_size = 1});
    const program::Program step = run.compile(0).step;
    int64_t most = 0;
    for (const program::ParameterPlace& place : step.parameters) most = std::max(most, place.whole_scratch);
    int updates = 0;
    for (const program::Instruction& i : step.instructions)
      for (const program::Operand& operand : i.operands)
        if (i.kind == program::InstructionKind::update && operand.role == program::Role::temporary) {
          ++updates;
          EXPECT_LE(operand.range.size_bytes, most);
        }
    return std::pair(most, updates);
  };
  // fc1: 256 x 64, its direction and the product, and twice 64 x 64 elements.
  EXPECT_GE(workspace_of(kMuon).first, 4 * (2 * 256 * 64 + 2 * 64 * 64));
  EXPECT_GE(workspace_of(kMuon).second, 1);
  EXPECT_EQ(workspace_of("optimizer.adamw={}"), std::pair(int64_t{0}, 0));
}

TEST(MuonPlans, RefuseServersThatHoldParts) {
  for (const char* mode : {"", ",mode=stale,bound=2", ",mode=async"}) {
    const std::string layout = std::string("dp=2,sync=ps,servers=2") + mode;
    const config::RunConfig config =
        config_of(kMlp, {kMuon, "parallel.reduction=FAST", "model.mlp.hidden=[600, 270]"});
    try {
      compile_run(with(config, layout), {.world_size = processes_of(layout)});
      ADD_FAILURE() << layout << " should be refused";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("parallel.assign"));
      EXPECT_THAT(error.what(), HasSubstr("assign=whole"));
    }
    const std::string whole = layout + ",assign=whole";
    compile_run(with(config, whole), {.world_size = processes_of(whole)}).check();
  }
}

/// One worker: each push is the whole step, so that a session has the bits of one process.
TEST(MuonSessions, OfOneWorkerHaveTheBitsOfOneProcess) {
  const config::RunConfig config = config_of(kMlp, {kMuon, "parallel.reduction=FAST", "trainer.clip_norm=0",
                                                    "trainer.virtual_replicas=1", "trainer.micro_batch=12"});
  const EndedRank one = train_sessions(config, "dp=1")[0];
  for (const char* layout :
       {"dp=1,sync=ps,mode=stale,bound=1", "dp=1,sync=ps,mode=async",
        "dp=1,sync=ps,servers=2,assign=whole,mode=async", "dp=1,sync=ps,placement=colocated,mode=async"}) {
    const EndedRank ended = train_sessions(config, layout)[0];
    EXPECT_EQ(ended.parameters_hash, one.parameters_hash) << layout;
    EXPECT_EQ(ended.state_hash, one.state_hash) << layout;
  }
}

}  // namespace
}  // namespace lockstep::train
