#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <tuple>

#include "lockstep/error.h"
#include "proof/checker.h"
#include "train/worker/compile_options.h"
#include "train/worker/worker.h"

namespace lockstep::train {
namespace {

constexpr const char* kProgramsConfig = R"(
format_version: 1
model { gpt { vocabulary: 11 context: 6 layers: 2 heads: 2 width: 8 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 11 context: 6 } }
trainer { steps: 6 global_batch: 24 virtual_replicas: 6 micro_batch: 2 seed: 7 clip_norm: 0.5 }
optimizer { learning_rate: 0.01 adamw {} }
parallel { reduction: REPRODUCIBLE bucket_bytes: 1024 }
)";

compile::CompiledRun compile(int workers, const std::vector<std::string>& overrides = {}) {
  return compile_run(config::parse_run_config(kProgramsConfig, "test", overrides), {.world_size = workers});
}

TEST(DataParallelPrograms, AreProvenInReproducibleMode) {
  for (const int workers : {1, 2, 3, 4, 5, 6})
    EXPECT_NO_THROW(compile(workers).check()) << workers << " workers";
  for (const int leaves : {1, 2, 3, 8, 12, 24})
    for (const int workers : {1, 2, 3, 4, 8})
      if (workers <= leaves) {
        EXPECT_NO_THROW(compile(workers, {"trainer.virtual_replicas=" + std::to_string(leaves)}).check())
            << workers << " workers, " << leaves << " leaves";
      }
}

TEST(DataParallelPrograms, AreProvenInFastMode) {
  for (const char* algorithm : {"LIBRARY", "RING"})
    for (const int workers : {1, 2, 3, 4, 6, 8, 12})
      EXPECT_NO_THROW(
          compile(workers, {"parallel.reduction=FAST", std::string("parallel.algorithm=") + algorithm})
              .check())
          << algorithm << ", " << workers << " workers";
}

compile::CompiledRun compile_for_one_host(int workers, const std::vector<std::string>& overrides) {
  return compile_run(config::parse_run_config(kProgramsConfig, "test", overrides),
                     {.world_size = workers, .shared_memory = true});
}

int count_of(const program::Program& program, program::InstructionKind kind) {
  return static_cast<int>(std::count_if(program.instructions.begin(), program.instructions.end(),
                                        [&](const program::Instruction& i) { return i.kind == kind; }));
}

TEST(DataParallelPrograms, AddInSharedMemoryWhereTheWorkersFollowTheTree) {
  // By leaves: the numbers of workers whose tree is the one over the leaves. 6 over 4 workers:
  // ((01)(23))(45).
  const std::map<int, std::vector<int>> follow{
      {8, {2, 4, 8}}, {6, {3, 4, 6}}, {5, {3, 5}}, {3, {2, 3}}, {2, {2}}};
  for (const auto& [leaves, numbers] : follow)
    for (int workers = 1; workers <= leaves; ++workers) {
      const auto run = compile_for_one_host(
          workers, {"trainer.virtual_replicas=" + std::to_string(leaves), "trainer.global_batch=120"});
      EXPECT_NO_THROW(run.check()) << workers << " workers, " << leaves << " leaves";
      const program::Program step = run.compile(0).step;
      const bool follows = std::find(numbers.begin(), numbers.end(), workers) != numbers.end();
      EXPECT_EQ(count_of(step, program::InstructionKind::all_reduce) > 0, follows)
          << workers << " workers, " << leaves << " leaves";
      EXPECT_EQ(count_of(step, program::InstructionKind::exchange) > 0, workers > 1 && !follows)
          << workers << " workers, " << leaves << " leaves";
      for (const auto& instruction : step.instructions)
        EXPECT_EQ(instruction.ordered, instruction.kind == program::InstructionKind::all_reduce);
      for (const auto& group : step.groups)
        EXPECT_EQ(group.transport == program::Transport::shared_memory, group.name == "reduce");
    }
}

TEST(DataParallelPrograms, ReduceByTheAlgorithmThatIsAskedFor) {
  const auto reductions = [](const std::string& reduction, const std::string& algorithm) {
    const auto run =
        compile_for_one_host(2, {"parallel.reduction=" + reduction, "parallel.algorithm=" + algorithm});
    run.check();
    const program::Program step = run.compile(0).step;
    return std::tuple(count_of(step, program::InstructionKind::all_reduce) > 0,
                      count_of(step, program::InstructionKind::exchange) > 0,
                      count_of(step, program::InstructionKind::ring_reduce_scatter) > 0,
                      step.groups[1].transport == program::Transport::shared_memory);
  };
  using Answer = std::tuple<bool, bool, bool, bool>;  // all-reduces, exchanges, rings, wants shared memory
  EXPECT_EQ(reductions("FAST", "AUTOMATIC"), Answer(true, false, false, true));
  EXPECT_EQ(reductions("FAST", "SHARED_MEMORY"), Answer(true, false, false, true));
  EXPECT_EQ(reductions("FAST", "LIBRARY"), Answer(true, false, false, false));
  EXPECT_EQ(reductions("FAST", "RING"), Answer(false, false, true, false));
  EXPECT_EQ(reductions("REPRODUCIBLE", "TREE"), Answer(false, true, false, false));
  EXPECT_EQ(reductions("REPRODUCIBLE", "SHARED_MEMORY"),
            Answer(false, true, false, true));  // 3 and 3 of 6 leaves: no nodes
}

// So that what all of them have together does not grow with the square of their number.
TEST(DataParallelPrograms, OfARingHaveTwoInstructionsForEachBucketWhateverTheNumberOfWorkers) {
  for (const int workers : {2, 256}) {
    const std::string number = std::to_string(workers);
    const auto run =
        compile(workers, {"parallel.reduction=FAST", "parallel.algorithm=RING", "trainer.micro_batch=1",
                          "trainer.global_batch=" + number, "trainer.virtual_replicas=" + number});
    EXPECT_NO_THROW(run.check()) << workers << " workers";
    const program::Program step = run.compile(workers - 1).step;
    const auto buckets = std::count_if(run.partition().buckets.begin(), run.partition().buckets.end(),
                                       [](const model::Bucket& bucket) { return bucket.size_bytes > 0; });
    EXPECT_EQ(count_of(step, program::InstructionKind::ring_reduce_scatter), buckets);
    EXPECT_EQ(count_of(step, program::InstructionKind::ring_all_gather), buckets);
    EXPECT_EQ(count_of(step, program::InstructionKind::exchange), 0);
    for (const auto& instruction : step.instructions) EXPECT_LE(instruction.blocks.size(), 2u);
  }
}

// Whoever waits for a proof of many ranks hears of it all along.
TEST(DataParallelPrograms, AreProvenInPiecesOfAnInstructionOrARank) {
  const auto run = compile(6);
  int pieces = 0;
  run.check([&] { ++pieces; });
  const auto programs = run.compile(0);
  const auto instructions = static_cast<int>(programs.step.instructions.size());
  EXPECT_GT(pieces, 6 * 2 * instructions) << "two iterations of each rank, at the least";
}

TEST(DataParallelPrograms, RefuseSharedMemoryWhereThereIsNone) {
  EXPECT_THROW(compile(2, {"parallel.algorithm=SHARED_MEMORY"}), ConfigError);
  EXPECT_NO_THROW(compile(1, {"parallel.algorithm=SHARED_MEMORY"}).check());
  EXPECT_NO_THROW(compile_for_one_host(2, {"parallel.algorithm=SHARED_MEMORY"}).check());
}

TEST(DataParallelPrograms, AreProvenWhenBucketsAreUpdatedAsTheyLand) {
  const std::vector<std::string> overrides{"trainer.clip_norm=0", "trainer.nonfinite=IGNORE"};
  for (const int workers : {1, 2, 3}) {
    EXPECT_NO_THROW(compile(workers, overrides).check()) << workers;
    EXPECT_NO_THROW(compile_for_one_host(workers, overrides).check()) << workers;
  }
}

TEST(DataParallelPrograms, ReductionsStartInTheMiddleOfTheBackwardPass) {
  const auto run = compile(2);
  const program::Program step = run.compile(0).step;
  int first_reduction = -1, last_backward = -1, backwards_behind = 0;
  for (size_t i = 0; i < step.instructions.size(); ++i) {
    const auto& instruction = step.instructions[i];
    if (instruction.kind == program::InstructionKind::exchange && first_reduction < 0)
      first_reduction = static_cast<int>(i);
    if (instruction.kind == program::InstructionKind::backward) {
      last_backward = static_cast<int>(i);
      if (first_reduction >= 0) ++backwards_behind;
    }
  }
  ASSERT_GE(first_reduction, 0);
  EXPECT_GT(last_backward, first_reduction);
  EXPECT_GE(backwards_behind, 2);
  // The first reduction waits for nothing behind the backward that completes its bucket.
  for (const auto& dependency : step.instructions[static_cast<size_t>(first_reduction)].after) {
    if (dependency.distance == 0) {
      EXPECT_LT(dependency.instruction, first_reduction);
    }
  }
}

int64_t bytes_sent(const program::Program& program) {
  int64_t bytes = 0;
  for (const auto& instruction : program.instructions)
    for (const auto& operand : instruction.operands)
      if (operand.role == program::Role::send) bytes += operand.range.size_bytes;
  return bytes;
}

/// Trees over numbers of workers that are no powers of two, where each worker's leaves are a node and the
/// trees over workers and over leaves split alike.
TEST(DataParallelPrograms, FoldTreesOfAnyNumberOfWorkersInLogarithmicallyManyRounds) {
  for (const auto& [workers, leaves] :
       {std::pair(3, 3), {3, 12}, {5, 5}, {6, 24}, {7, 7}, {11, 22}, {23, 23}, {48, 192}, {63, 63}}) {
    const std::string batch = std::to_string(leaves);
    const auto run = compile(workers, {"trainer.virtual_replicas=" + batch, "trainer.global_batch=" + batch,
                                       "parallel.bucket_bytes=100000000"});
    ASSERT_TRUE(run.division().follows_tree && !run.division().folds_by_halving)
        << workers << " workers, " << leaves << " leaves";
    EXPECT_NO_THROW(run.check()) << workers << " workers, " << leaves << " leaves";
    const auto buckets = static_cast<int>(std::ranges::count_if(
        run.partition().buckets, [](const auto& bucket) { return bucket.size_bytes > 0; }));
    const int rounds = static_cast<int>(std::bit_width(static_cast<unsigned>(workers)));
    int64_t bytes = 0;
    for (const auto& bucket : run.partition().buckets) bytes += bucket.size_bytes;
    for (int rank = 0; rank < workers; ++rank) {
      const program::Program step = run.compile(rank).step;
      EXPECT_LE(count_of(step, program::InstructionKind::exchange), 4 * rounds * buckets)
          << "rank " << rank << " of " << workers;
      // Halving and doubling send less than twice a bucket; what passes between two blocks is at most all of
      // it, each way.
      EXPECT_LE(bytes_sent(step), 4 * bytes) << "rank " << rank << " of " << workers;
    }
  }
}

/// Of a model of 40 layers of 513 x 512 parameters, 40 MiB, or of which every other one has `others` units.
compile::CompiledRun compile_deep(const std::string& layout, const std::string& parallel = "",
                                  int others = 512) {
  std::string hidden;
  for (int layer = 0; layer < 40; ++layer)
    hidden += fmt::format("hidden: {} ", layer % 2 == 0 ? 512 : others);
  config::RunConfig config = config::parse_run_config(
      "format_version: 1 model { mlp { image: [16, 16, 1] " + hidden +
          "classes: 3 } } data { synthetic { samples: 40 eval_samples: 8 classes: 3 shape: [16, 16, 1] } } "
          "trainer { steps: 1 global_batch: 768 nonfinite: IGNORE } optimizer { learning_rate: 0.1 sgd {} } "
          "parallel { " +
          parallel + " }",
      "test", {});
  config.parallel.layout = layout::parse_layout(layout);
  const int ranks = config.parallel.layout.world_size();
  return compile_run(config, {.world_size = ranks, .hosts = std::vector<int>(static_cast<size_t>(ranks))});
}

TEST(DataParallelPrograms, HaveLargerBucketsWhereOwnersCutThemAndNobodySaysHowLarge) {
  constexpr int64_t kMiB = 1 << 20, kLayer = (512 + 1) * 512 * 4, kModel = 40 * kLayer;
  const auto largest = [](const compile::CompiledRun& run) {
    int64_t bytes = 0;
    for (const auto& bucket : run.partition().buckets) bytes = std::max(bytes, bucket.size_bytes);
    return bytes;
  };
  // A bucket is complete with the layer that reaches its size.
  const auto expect_about = [&](const std::string& layout, int64_t bytes, const std::string& parallel = "") {
    const int64_t found = largest(compile_deep(layout, parallel));
    EXPECT_GE(found, bytes) << layout << " " << parallel;
    EXPECT_LE(found, bytes + kLayer) << layout << " " << parallel;
  };
  for (const char* layout : {"dp=3", "dp=3,sync=ps", "dp=3,sync=ps,servers=3,mode=stale",
                             "dp=3,sync=ps,servers=3,mode=async", "dp=3,sync=ps,servers=3,aggregate=host"})
    expect_about(layout, kMiB);
  for (const char* layout : {"dp=1,sync=ps,servers=2", "dp=3,sync=ps,servers=2", "dp=2,shard=optimizer"})
    expect_about(layout, 4 * kMiB);
  for (const char* layout : {"dp=3,sync=ps,servers=3", "dp=6,shard=optimizer"})
    expect_about(layout, kModel / 8);
  expect_about("dp=3,shard=optimizer", 3 * kMiB, "bucket_bytes: 3145728");
  expect_about("dp=3,shard=optimizer,recompute=full", kMiB);
}

TEST(DataParallelPrograms, OfServersHaveFewerSlicesWhereManyWorkersSendThem) {
  const auto additions = [](int workers) {
    const auto run = compile_deep("dp=" + std::to_string(workers) + ",sync=ps");
    return count_of(run.compile(workers).step, program::InstructionKind::add);
  };
  EXPECT_GT(additions(4), 40 * 8 * 3) << "an eighth of 1 MiB each, of 40 layers";
  EXPECT_LT(additions(256), 65'000);
}

TEST(DataParallelPrograms, AreRefusedWithAnotherNumberOfServersThatWorks) {
  int refused = 0;
  for (int servers = 20; servers <= 100; servers += 10) {
    try {
      compile_deep("dp=1,assign=whole,sync=ps,servers=" + std::to_string(servers), "", 64);
    } catch (const ConfigError& error) {
      const std::string text = error.what(), mark = "the nearest that works is '";
      const size_t begin = text.find(mark);
      ASSERT_NE(begin, std::string::npos) << text;
      const std::string nearest = text.substr(begin + mark.size());
      EXPECT_NO_THROW(compile_deep(nearest.substr(0, nearest.find('\'')), "", 64).check()) << text;
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(DataParallelPrograms, AreTheSameWhereverTheyAreCompiled) {
  EXPECT_EQ(compile(3).program_hash(), compile(3).program_hash());
  EXPECT_NE(compile(3).program_hash(), compile(2).program_hash());
  EXPECT_NE(compile(3).program_hash(), compile(3, {"parallel.bucket_bytes=2048"}).program_hash());
  EXPECT_NE(compile_deep("dp=1,sync=ps,servers=2").program_hash(),
            compile_deep("dp=1,sync=ps,servers=2", "bucket_bytes: 4194304").program_hash())
      << "of one size, but the slices are not";
  const auto run = compile(3);
  EXPECT_EQ(program::hash_of(run.compile(1).step), program::hash_of(run.compile(1).step));
}

TEST(DataParallelPrograms, MayBeOfThousandsOfMicroBatchesButNotOfMillions) {
  const auto of_micro_batches = [](int64_t count) {
    return compile(1, {"parallel.reduction=FAST", "trainer.micro_batch=1",
                       "trainer.global_batch=" + std::to_string(count)});
  };
  const program::Program step = of_micro_batches(4096).compile(0).step;
  EXPECT_EQ(count_of(step, program::InstructionKind::load), 4096);
  EXPECT_GT(step.instructions.size(), 20'000u);
  EXPECT_THROW(of_micro_batches(int64_t{1} << 20), ConfigError);
}

TEST(DataParallelPrograms, TextRoundTrip) {
  const program::Program step = compile(2).compile(1).step;
  EXPECT_EQ(program::program_from_text(program::to_text(step)), step);
}

TEST(DataParallelPrograms, ParametersLieAtTheSamePlacesInAllProgramsOfARank) {
  const auto programs = compile(2).compile(0);
  for (const program::Program* other : {&programs.evaluate, &programs.boundary})
    for (size_t p = 0; p < programs.step.parameters.size(); ++p) {
      const auto& a = programs.step.parameters[p];
      const auto& b = other->parameters[p];
      EXPECT_EQ(programs.step.buffers[static_cast<size_t>(a.buffer)].offset + a.offset,
                other->buffers[static_cast<size_t>(b.buffer)].offset + b.offset)
          << a.name << " in " << other->name;
    }
}

}  // namespace
}  // namespace lockstep::train
