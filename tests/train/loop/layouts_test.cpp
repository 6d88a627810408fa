#include <gtest/gtest.h>

#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

// Small models that hold everything which could depend on a layout: dropout, batch norm, ties, forks,
// accumulation, clipping, warm-up; global batch 12 over V = 4 leaves of 3 samples in micro-batches of 1 or 3.
constexpr const char* kLayoutsCommon = R"(
format_version: 1
trainer { steps: 6 global_batch: 12 virtual_replicas: 4 seed: 7 clip_norm: 0.5 eval_every_steps: 3 }
optimizer { learning_rate: 0.01 adamw {} weight_decay: 0.1 schedule { warmup_steps: 2 cosine { minimum: 0.001 } } }
parallel { reduction: REPRODUCIBLE bucket_bytes: 2048 }
)";

const char* kLayoutsMlp = R"(
model { mlp { image: 6 image: 6 image: 1 hidden: 17 hidden: 13 classes: 5 dropout: 0.3 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 5 shape: 6 shape: 6 shape: 1 } }
)";
const char* kLayoutsLenet = R"(
model { lenet { image: 16 image: 16 image: 1 classes: 4 dropout: 0.2 batch_norm: true } }
data { synthetic { samples: 40 eval_samples: 23 classes: 4 shape: 16 shape: 16 shape: 1 } }
)";

const char* kTiedGpt = R"(
model { gpt { vocabulary: 11 context: 6 layers: 1 heads: 2 width: 16 tied_head: true } }
data { synthetic { samples: 40 eval_samples: 23 classes: 11 } shuffle: false }
)";

config::RunConfig layouts_config(const char* model, const std::vector<std::string>& overrides = {},
                                 const std::optional<std::string>& layout = {}) {
  return config::parse_run_config(std::string(kLayoutsCommon) + model, "test", overrides, layout);
}

void expect_same_on_all_layouts(const config::RunConfig& config) {
  const Trace one = train_on_threads(config, 1);
  ASSERT_EQ(one.losses.size(), 6u);
  EXPECT_NE(one.losses.front(), one.losses.back());
  for (const int ranks : {2, 3, 4}) EXPECT_EQ(train_on_threads(config, ranks), one) << ranks << " workers";
}

TEST(Layouts, MlpWithDropoutHasTheSameBitsOnAnyNumberOfWorkers) {
  expect_same_on_all_layouts(layouts_config(kLayoutsMlp));
}

TEST(Layouts, LenetWithBatchNormHasTheSameBitsOnAnyNumberOfWorkers) {
  expect_same_on_all_layouts(layouts_config(kLayoutsLenet));
}

TEST(Layouts, SmallMicroBatchesHaveTheSameBitsOnAnyNumberOfWorkers) {
  expect_same_on_all_layouts(layouts_config(kLayoutsMlp, {"trainer.micro_batch=1"}));
}

TEST(Layouts, SevenLeavesDivideAmongAnyNumberOfWorkers) {
  const config::RunConfig config =
      layouts_config(kLayoutsMlp, {"trainer.virtual_replicas=7", "trainer.global_batch=14"});
  const Trace one = train_on_threads(config, 1);
  for (const int ranks : {2, 3, 5, 7}) EXPECT_EQ(train_on_threads(config, ranks), one) << ranks << " workers";
}

/// Of a step's micro-batches: the leaves that each holds.
std::vector<int> leaves_at_once(const config::RunConfig& config, int ranks, int rank) {
  std::vector<int> leaves;
  for (const auto& instruction : compile_run(config, {.world_size = ranks}).compile(rank).step.instructions)
    if (instruction.kind == program::InstructionKind::load) leaves.push_back(instruction.leaves);
  return leaves;
}

TEST(Layouts, SharesOfNodesOfUnlikeSizesHaveTheSameBits) {
  struct Shares {
    int leaves, ranks;
    std::vector<int> of_first;
  };
  for (const char* model : {kLayoutsMlp, kLayoutsLenet, kTiedGpt})
    for (const Shares& shares :
         {Shares{8, 3, {2, 1}}, Shares{8, 5, {2}}, Shares{64, 3, {16, 4, 2}}, Shares{7, 2, {4}}}) {
      const std::string leaves = std::to_string(shares.leaves);
      const std::vector<std::string> joint{"trainer.virtual_replicas=" + leaves,
                                           "trainer.global_batch=" + std::to_string(2 * shares.leaves)};
      std::vector<std::string> apart = joint;
      apart.push_back("trainer.micro_batch=2");
      EXPECT_EQ(leaves_at_once(layouts_config(model, joint), shares.ranks, 0), shares.of_first);
      const Trace one_by_one = train_on_threads(layouts_config(model, apart), 1);
      for (const int ranks : {1, shares.ranks})
        EXPECT_EQ(train_on_threads(layouts_config(model, joint), ranks), one_by_one)
            << model << leaves << " leaves, " << ranks << " workers";
    }
}

TEST(Layouts, SharesOfUnlikeSizesMeetInEveryWayToSum) {
  const config::RunConfig config =
      layouts_config(kLayoutsLenet, {"trainer.virtual_replicas=8", "trainer.global_batch=16"});
  const Trace one = train_on_threads(config, 1);
  for (const char* layout :
       {"dp=3,shard=optimizer", "dp=3,sync=ps,servers=1", "dp=3,sync=ps,placement=colocated,servers=3",
        "dp=3,recompute=full", "dp=3,recompute=selective", "dp=3,sync=ps,servers=1,aggregate=host"}) {
    const config::RunConfig own = layouts_config(
        kLayoutsLenet, {"trainer.virtual_replicas=8", "trainer.global_batch=16"}, std::string(layout));
    EXPECT_EQ(train_on_threads(own, own.parallel.layout.world_size()), one) << layout;
  }
}

TEST(Layouts, WorkersWhoseNumberIsNoPowerOfTwoFoldTheTreeInBlocksToTheSameBits) {
  for (const char* model : {kLayoutsMlp, kLayoutsLenet}) {
    const config::RunConfig config = layouts_config(
        model, {"trainer.virtual_replicas=12", "trainer.global_batch=24", "trainer.micro_batch=1"});
    const Trace one = train_on_threads(config, 1);
    for (const int ranks : {3, 6, 12}) EXPECT_EQ(train_on_threads(config, ranks), one) << ranks << " workers";
    const TraceOptions lanes{.asynchronous = device::AsyncCpuOptions{.jitter_seed = 5, .max_jitter_us = 200},
                             .shared_memory = false,
                             .output_directory = {}};
    EXPECT_EQ(train_on_threads(config, 3, lanes), one);
  }
}

TEST(Layouts, SumsInSharedMemoryHaveTheSameBits) {
  const config::RunConfig config =
      layouts_config(kLayoutsLenet, {"trainer.virtual_replicas=8", "trainer.global_batch=16"});
  const Trace one = train_on_threads(config, 1);
  // 3 workers do not follow the tree over 8 leaves: exchanges run over the same channel.
  for (const int ranks : {1, 2, 3, 4, 8})
    EXPECT_EQ(
        train_on_threads(config, ranks, {.asynchronous = {}, .shared_memory = true, .output_directory = {}}),
        one)
        << ranks << " workers";
}

TEST(Layouts, BucketSizesChangeNoBit) {
  const Trace one = train_on_threads(layouts_config(kLayoutsMlp), 2);
  EXPECT_EQ(train_on_threads(layouts_config(kLayoutsMlp, {"parallel.bucket_bytes=1"}), 2), one);
  EXPECT_EQ(train_on_threads(layouts_config(kLayoutsMlp, {"parallel.bucket_bytes=100000000"}), 2), one);
}

TEST(Layouts, LanesThatRunAtOnceGiveTheSameBits) {
  const Trace one = train_on_threads(layouts_config(kLayoutsMlp), 1);
  for (const uint64_t seed : {1, 2, 3}) {
    const TraceOptions options{
        .asynchronous = device::AsyncCpuOptions{.jitter_seed = seed, .max_jitter_us = 200},
        .shared_memory = seed == 3,
        .output_directory = {}};
    EXPECT_EQ(train_on_threads(layouts_config(kLayoutsMlp), 2, options), one);
    EXPECT_EQ(train_on_threads(layouts_config(kLayoutsMlp), 3, options), one);
  }
}

TEST(Layouts, UpdatingBucketsAsTheyLandChangesNoBit) {
  const std::vector<std::string> no_clipping{"trainer.clip_norm=0"};
  const Trace one = train_on_threads(layouts_config(kLayoutsMlp, no_clipping), 2);
  EXPECT_EQ(
      train_on_threads(layouts_config(kLayoutsMlp, {"trainer.clip_norm=0", "trainer.nonfinite=IGNORE"}), 2),
      one);
}

TEST(Layouts, FastModeIsCloseToReproducible) {
  const Trace exact = train_on_threads(layouts_config(kLayoutsMlp, {"data.shuffle=false"}), 1);
  for (const int ranks : {1, 2, 4}) {
    const Trace fast = train_on_threads(
        layouts_config(kLayoutsMlp, {"data.shuffle=false", "parallel.reduction=FAST"}), ranks);
    ASSERT_EQ(fast.losses.size(), exact.losses.size());
    for (size_t i = 0; i < exact.losses.size(); ++i)
      EXPECT_NEAR(fast.losses[i], exact.losses[i], 1e-4) << ranks;
    const config::RunConfig config =
        layouts_config(kLayoutsMlp, {"data.shuffle=false", "parallel.reduction=FAST"});
    const Trace shared =
        train_on_threads(config, ranks, {.asynchronous = {}, .shared_memory = true, .output_directory = {}});
    ASSERT_EQ(shared.losses.size(), exact.losses.size());
    for (size_t i = 0; i < exact.losses.size(); ++i)
      EXPECT_NEAR(shared.losses[i], exact.losses[i], 1e-4) << ranks;
  }
}

TEST(Layouts, FastSumsOfTiedParametersAreCloseToReproducibleOnes) {
  for (const char* clip_norm : {"0.5", "0"}) {
    // Without clipping, and without a look at what is not finite, buckets are updated as they land.
    const std::vector<std::string> common{std::string("trainer.clip_norm=") + clip_norm,
                                          "trainer.nonfinite=IGNORE"};
    const Trace exact = train_on_threads(layouts_config(kTiedGpt, common), 1);
    ASSERT_EQ(exact.losses.size(), 6u);
    for (const char* layout :
         {"dp=2", "dp=2,shard=optimizer", "dp=2,sync=ps,servers=1",
          "dp=2,sync=ps,placement=colocated,servers=2", "dp=2,pp=2", "dp=2,pp=2,shard=optimizer"})
      for (const char* bucket_bytes : {"1", "1000000"}) {
        std::vector<std::string> overrides = common;
        overrides.insert(overrides.end(),
                         {"parallel.reduction=FAST", std::string("parallel.bucket_bytes=") + bucket_bytes});
        const config::RunConfig config = layouts_config(kTiedGpt, overrides, layout);
        const Trace fast = train_on_threads(config, config.parallel.layout.world_size());
        ASSERT_EQ(fast.losses.size(), exact.losses.size()) << layout;
        for (size_t i = 0; i < exact.losses.size(); ++i)
          EXPECT_NEAR(fast.losses[i], exact.losses[i], 1e-4)
              << layout << ", step " << i + 1 << ", buckets of " << bucket_bytes << " bytes";
      }
  }
}

}  // namespace
}  // namespace lockstep::train
