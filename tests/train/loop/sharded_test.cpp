// Optimizers whose state is divided among the workers train to the same bits as those of which every worker
// has all.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "checkpoint/checkpoint.h"
#include "train/loop/divided_models.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

config::RunConfig sharded(config::RunConfig config) {
  config.parallel.layout.shard = layout::ShardedState::optimizer;
  return config;
}

class ShardedOptimizer : public testing::TestWithParam<ModelCase> {};

TEST_P(ShardedOptimizer, TrainsToTheSameBits) {
  const config::RunConfig config = GetParam().config();
  const Trace one = train_on_threads(config, 1);
  for (const int ranks : {1, 2, 3, 4})
    EXPECT_EQ(train_on_threads(sharded(config), ranks), one) << ranks << " workers";
}

const std::string kSgd = "optimizer.sgd={momentum: 0.9}";
INSTANTIATE_TEST_SUITE_P(
    All, ShardedOptimizer,
    testing::Values(ModelCase{"mlp", kMlp, {}}, ModelCase{"mlp_sgd", kMlp, {kSgd}},
                    ModelCase{"mlp_adam", kMlp, {"optimizer.adam={}"}},
                    ModelCase{"mlp_without_state", kMlp, {"optimizer.sgd={}"}},
                    ModelCase{"mlp_bfloat16", kMlp, {"precision.compute=BFLOAT16"}},
                    ModelCase{"mlp_float16", kMlp, {"precision.compute=FLOAT16"}},
                    ModelCase{"mlp_as_it_lands", kMlp, {"trainer.clip_norm=0", "trainer.nonfinite=IGNORE"}},
                    ModelCase{"mlp_small_buckets", kMlp, {"parallel.bucket_bytes=1"}},
                    ModelCase{"lenet", kLenet, {}}, ModelCase{"lenet_sgd", kLenet, {kSgd}},
                    ModelCase{"gpt", kGpt, {}},
                    ModelCase{"gpt_bfloat16", kGpt, {"precision.compute=BFLOAT16"}}),
    [](const auto& info) { return info.param.name; });

TEST(ShardedOptimizers, TrainInSharedMemoryToTheSameBits) {
  const config::RunConfig config = config_of(kMlp);
  const Trace one = train_on_threads(config, 1);
  for (const int ranks : {2, 3})
    EXPECT_EQ(train_on_threads(sharded(config), ranks,
                               {.asynchronous = {}, .shared_memory = true, .output_directory = {}}),
              one)
        << ranks;
}

TEST(ShardedOptimizers, OfLanesThatRunAtOnceGiveTheSameBits) {
  const config::RunConfig config = config_of(kGpt);
  const Trace one = train_on_threads(config, 1);
  for (const uint64_t seed : {1, 2})
    for (const int ranks : {2, 3})
      EXPECT_EQ(train_on_threads(
                    sharded(config), ranks,
                    {.asynchronous = device::AsyncCpuOptions{.jitter_seed = seed, .max_jitter_us = 200},
                     .output_directory = {}}),
                one)
          << ranks;
}

TEST(ShardedOptimizers, InFastModeAreCloseToReproducible) {
  const Trace exact = train_on_threads(config_of(kMlp, {"data.shuffle=false"}), 1);
  for (const int ranks : {1, 2, 3, 4}) {
    const Trace fast =
        train_on_threads(sharded(config_of(kMlp, {"data.shuffle=false", "parallel.reduction=FAST"})), ranks);
    expect_close_losses(fast, exact, std::to_string(ranks));
  }
}

TEST(ShardedOptimizers, OverflowsSkipTheSameSteps) {
  const config::RunConfig config = config_that_overflows();
  const Trace one = train_on_threads(config, 1);
  EXPECT_FALSE(std::isfinite(one.norms.front())) << "no step has overflowed";
  for (const int ranks : {2, 3}) EXPECT_EQ(train_on_threads(sharded(config), ranks), one) << ranks;
}

int64_t bytes_of(const compile::CompiledRun& run, int rank, program::Category category) {
  return run.compile(rank).step_plan.category_bytes[static_cast<size_t>(category)];
}

TEST(ShardedOptimizers, HoldTheirPartOfTheState) {
  const config::RunConfig config = config_of(kMlp);
  const int64_t all = bytes_of(compile_run(config, {.world_size = 1}), 0, program::Category::optimizer_state);
  constexpr int64_t kSlots = 2, kChunk = 4 * layout::kNormChunk;
  for (const int ranks : {2, 3, 4}) {
    const compile::CompiledRun run = compile_run(sharded(config), {.world_size = ranks});
    int64_t together = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t own = bytes_of(run, rank, program::Category::optimizer_state);
      together += own;
      EXPECT_NEAR(static_cast<double>(own), static_cast<double>(all) / ranks, kSlots * kChunk)
          << rank << " of " << ranks;
      EXPECT_EQ(bytes_of(run, rank, program::Category::parameters),
                bytes_of(compile_run(config, {.world_size = 1}), 0, program::Category::parameters));
    }
    EXPECT_NEAR(static_cast<double>(together), static_cast<double>(all), 256.0 * ranks * 10)
        << "rounded to 256 bytes a buffer";
  }
}

TEST(ShardedOptimizers, AreProven) {
  for (const char* model : {kMlp, kLenet, kGpt})
    for (const char* reduction : {"parallel.reduction=FAST", "parallel.reduction=REPRODUCIBLE"})
      for (const int ranks : {1, 2, 3, 4})
        for (const bool shared_memory : {false, true})
          compile_run(sharded(config_of(model, {reduction})),
                      {.world_size = ranks, .shared_memory = shared_memory})
              .check();
}

int64_t bytes_sent(const compile::CompiledRun& run, int rank) {
  int64_t bytes = 0;
  const program::Program step = run.compile(rank).step;
  for (const auto& instruction : step.instructions)
    for (const auto& operand : instruction.operands)
      if (operand.role == program::Role::send) bytes += operand.range.size_bytes;
  return bytes;
}

TEST(ShardedOptimizers, SendAsManyBytesAsSumsOfAllGradients) {
  for (const char* reduction : {"parallel.reduction=FAST", "parallel.reduction=REPRODUCIBLE"})
    for (const int ranks : {2, 4}) {
      const config::RunConfig config = config_of(kMlp, {reduction, "parallel.bucket_bytes=100000000"});
      const compile::CompiledRun whole = compile_run(config, {.world_size = ranks}),
                                 cut = compile_run(sharded(config), {.world_size = ranks});
      int64_t sent_whole = 0, sent_cut = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        sent_whole += bytes_sent(whole, rank);
        sent_cut += bytes_sent(cut, rank);
      }
      EXPECT_EQ(sent_cut, sent_whole) << reduction << ", " << ranks << " workers";
    }
}

/// Trains `ranks` workers until `steps`, in a folder that may hold checkpoints; the trace of what was trained
/// here.
Trace train_until(config::RunConfig config, int ranks, int64_t steps, const std::string& folder) {
  config.checkpoint.every_steps = 2;
  config.checkpoint.background = false;
  config.checkpoint.resume = checkpoint::ResumePolicy::automatic;
  std::vector<Trace> traces(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, comm::Communicator& world) {
    Trace& trace = traces[static_cast<size_t>(rank)];
    Worker worker(config, {.rank = rank, .world_size = ranks, .asynchronous = {}});
    worker.connect(world);
    TrainerEvents events;
    events.on_step = [&](const StepRecord& record) { trace.losses.push_back(record.loss); };
    Trainer trainer(worker, world, events,
                    {.output_directory = folder, .stop_requested = {}, .stop_after = steps});
    trainer.prepare();
    trainer.run();
    trace.norms.push_back(std::bit_cast<double>(state_hash_of(worker, world)));
  });
  return traces[0];
}

TEST(ShardedOptimizers, ResumeFromWholeStateAndBackOnAnyNumberOfWorkers) {
  const config::RunConfig config = config_of(kGpt);
  const auto folder_of = [](const std::string& name) {
    const auto folder = std::filesystem::path(testing::TempDir()) / ("sharded-" + name);
    std::filesystem::remove_all(folder);
    return folder.string();
  };
  const Trace one = train_until(config, 1, 0, folder_of("one"));
  struct Half {
    bool cut;
    int ranks;
  };
  int number = 0;
  for (const auto& [first, second] :
       {std::pair{Half{true, 2}, Half{false, 3}}, std::pair{Half{false, 2}, Half{true, 4}},
        std::pair{Half{true, 3}, Half{true, 2}}, std::pair{Half{true, 4}, Half{false, 1}}}) {
    const std::string folder = folder_of(std::to_string(number++));
    train_until(first.cut ? sharded(config) : config, first.ranks, 2, folder);
    const Trace rest = train_until(second.cut ? sharded(config) : config, second.ranks, 0, folder);
    ASSERT_EQ(rest.losses.size(), 3u);
    EXPECT_TRUE(std::equal(rest.losses.begin(), rest.losses.end(), one.losses.begin() + 2)) << number;
    EXPECT_EQ(std::bit_cast<uint64_t>(rest.norms[0]), std::bit_cast<uint64_t>(one.norms[0])) << number;
  }
}

TEST(ShardedOptimizers, SaveModelsThatAreWhole) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "sharded-save";
  std::filesystem::remove_all(folder);
  train_until(sharded(config_of(kMlp)), 4, 2, folder.string());
  const checkpoint::Checkpoint checkpoint(folder.string() + "/checkpoints/step-00000002");
  int parts = 0;
  for (const auto& file : checkpoint.manifest().files)
    for (const auto& tensor : file.tensors) {
      EXPECT_TRUE(file.kind == checkpoint::FileKind::optimizer || tensor.is_whole()) << tensor.name;
      parts += tensor.is_whole() ? 0 : 1;
    }
  EXPECT_GT(parts, 0) << "no state was cut";
}

}  // namespace
}  // namespace lockstep::train
