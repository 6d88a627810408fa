#include "train/worker/worker_memory.h"

#include <gtest/gtest.h>

#include <array>

#include "layout/layout.h"
#include "train/worker/batches.h"
#include "train/worker/compile_options.h"

namespace lockstep::train {
namespace {

// In a micro-batch: 2 images of 16 numbers, and 2 labels.
constexpr const char* kWorkerMemoryConfig = R"(
format_version: 1
model { mlp { image: 4 image: 4 image: 1 hidden: 8 classes: 5 } }
data { synthetic { samples: 60 eval_samples: 6 classes: 5 shape: 4 shape: 4 shape: 1 } }
trainer { steps: 8 global_batch: 8 virtual_replicas: 2 micro_batch: 2 }
optimizer { learning_rate: 0.01 adam {} }
)";

config::RunConfig memory_config(const std::vector<std::string>& overrides) {
  return config::parse_run_config(kWorkerMemoryConfig, "test", overrides);
}

HostMemory planned(const std::vector<std::string>& overrides) {
  const config::RunConfig config = memory_config(overrides);
  const compile::CompiledRun run = compile_run(config, {});
  return plan_worker_memory(run, run.compile(0), config).host;
}

TEST(WorkerMemory, OnCpusTheHostAddsWhatIsReadAhead) {
  const HostMemory host = planned({});
  EXPECT_EQ(host.checkpoint_copy_bytes, 0);
  EXPECT_EQ(host.staging_bytes, 96);
  EXPECT_EQ(host.read_ahead_bytes, 2 * 4 * (2 * 16 * 4 + 2 * 4));
  EXPECT_EQ(host.total_bytes(), 96 + 1088);
}

TEST(WorkerMemory, OfTheDeviceIsThatOfAllItsPrograms) {
  const config::RunConfig config = memory_config({});
  const compile::CompiledRun run = compile_run(config, {});
  const auto programs = run.compile(0);
  const program::MemoryPlan device = plan_worker_memory(run, programs, config).device;
  EXPECT_GE(device.total_bytes, programs.step_plan.total_bytes);
  // 16 x 8 + 8 + 8 x 5 + 5 = 181 parameters of 4 bytes with two moments, rounded up to 256: what a checkpoint
  // is written from.
  EXPECT_EQ(device.space_bytes[static_cast<size_t>(program::Space::host)], 2304);
}

TEST(WorkerMemory, NothingIsReadAheadWithoutThreads) {
  EXPECT_EQ(planned({"data.prefetch_threads=0"}).read_ahead_bytes, 0);
  // Room for converting a sample is there all the same: with each of 4 micro-batches, and with who takes
  // them.
  EXPECT_EQ(planned({"data.prefetch_threads=0", "precision.compute=BFLOAT16"}).read_ahead_bytes,
            2 * 5 * 16 * 4);
}

TEST(WorkerMemory, PrefetchingComesToHoldWhatIsPlanned) {
  for (const char* type : {"FLOAT32", "BFLOAT16"}) {
    const config::RunConfig config = memory_config({std::string("precision.compute=") + type});
    const compile::CompiledRun run = compile_run(config, {});
    const data::DatasetPair data = data::open_datasets(config.data);
    PrefetchedBatches batches(*data.train, run.graph(), data::SampleOrder(1, data.train->size(), true), 8,
                              {{0, 2}, {2, 2}, {4, 2}, {6, 2}}, read_ahead_of(config.data, 1));
    std::array<std::array<std::byte, 2 * 16 * 4>, 2> memory;
    std::vector<Tensor> fields;
    for (const int input : run.graph().inputs) {
      const auto& spec = run.graph().values[static_cast<size_t>(input)].spec;
      fields.push_back({memory[fields.size()].data(), spec.shape.batched(2), spec.dtype});
    }
    const int64_t expected = planned({std::string("precision.compute=") + type}).read_ahead_bytes / 2;
    // The thread fills each of its slots once it is asked for often enough.
    for (uint64_t i = 0; i < 1'000'000 && batches.held_bytes() < expected; ++i)
      batches.load(i / 4, static_cast<int64_t>(i % 4 * 2), fields);
    EXPECT_EQ(batches.held_bytes(), expected) << type;
  }
}

TEST(WorkerMemory, HasRoomForParametersWhoseAveragesAreEvaluated) {
  EXPECT_EQ(planned({"optimizer.ema={decay: 0.5}"}).averages_bytes, 0);
  const HostMemory host = planned({"optimizer.ema={decay: 0.5 evaluate: true}"});
  // All of them, and the largest.
  EXPECT_EQ(host.averages_bytes, 4 * (16 * 8 + 8 + 8 * 5 + 5) + 4 * 16 * 8);
  EXPECT_EQ(host.total_bytes(), planned({}).total_bytes() + host.averages_bytes);
}

TEST(WorkerMemory, HasRoomForAnAverageOnServersToo) {
  config::RunConfig config = memory_config({"optimizer.ema={decay: 0.5 evaluate: true}"});
  config.parallel.layout = layout::parse_layout("dp=2,sync=ps");
  const compile::CompiledRun run = compile_run(config, {.world_size = 3});
  const auto averages = [&](int rank) {
    return plan_worker_memory(run, run.compile(rank), config).host.averages_bytes;
  };
  EXPECT_EQ(averages(0), 4 * (16 * 8 + 8 + 8 * 5 + 5) + 4 * 16 * 8);
  // It keeps nothing, but takes part in gathering each.
  EXPECT_EQ(averages(2), 4 * 16 * 8);
}

TEST(WorkerMemory, IsPrintedAsTwoSums) {
  WorkerMemory memory;
  memory.device.total_bytes = 3 << 20;
  memory.host = {.checkpoint_copy_bytes = 2048, .staging_bytes = 512, .read_ahead_bytes = 512};
  EXPECT_TRUE(
      describe(memory).ends_with("  total               3.00 MiB\n"
                                 "beside it, of the host:\n"
                                 "  checkpoint copy     2.00 KiB\n"
                                 "  staging                512 B\n"
                                 "  read ahead             512 B\n"
                                 "  total               3.00 KiB\n"))
      << describe(memory);
}

}  // namespace
}  // namespace lockstep::train
