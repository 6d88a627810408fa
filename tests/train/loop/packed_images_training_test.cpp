// Training on images that GPUs transform (data.transforms_on: GPU) has the bits of training on those that
// processors transform.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "data/images/image_writer.h"
#include "data/test_files.h"
#include "lockstep/error.h"
#include "mentions.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"
#include "train/worker/worker_memory.h"

namespace lockstep::train {
namespace {

constexpr const char* kConfig = R"(
format_version: 1
trainer { steps: 3 global_batch: 8 virtual_replicas: 4 micro_batch: 1 seed: 7 eval_every_steps: 2 }
optimizer { learning_rate: 0.01 adamw {} }
parallel { reduction: REPRODUCIBLE bucket_bytes: 2048 }
model { lenet { image: 16 image: 16 image: 3 classes: 3 batch_norm: true } }
data {
  images { train: "train" eval: "train" }
  transforms { random_resized_crop {} }
  transforms { flip {} }
  transforms { color_jitter { brightness: 0.3 contrast: 0.4 saturation: 0.2 hue: 0.1 } }
  transforms { mixup { alpha: 1 probability: 0.4 } }
  transforms { cutmix { alpha: 1 probability: 0.4 } }
  transforms { erase {} }
  transforms { normalize { mean: 0.5 deviation: 0.25 } }
  eval_transforms { resize {} }
  eval_transforms { normalize { mean: 0.5 deviation: 0.25 } }
}
)";

/// Threads of one process need a GPU of their own each, of which the emulated one has any number.
bool can_have(int ranks) {
  const auto devices = device::probe_gpus().devices;
  return !devices.empty() && (ranks == 1 || devices[0].name == "emulated GPU");
}

class PackedImagesTraining : public ::testing::Test {
 protected:
  PackedImagesTraining() {
    for (int i = 0; i < 20; ++i) {
      const data::ImageShape shape{20 + i, 30, 3};
      std::vector<uint8_t> bytes(static_cast<size_t>(shape.count()));
      for (size_t k = 0; k < bytes.size(); ++k)
        bytes[k] = static_cast<uint8_t>(k * static_cast<size_t>(i + 3) / 17);
      const std::string folder = directory_ / ("train/" + std::to_string(i % 3));
      std::filesystem::create_directories(folder);
      test::write_file(folder + "/" + std::to_string(i) + ".jpg", data::jpeg_bytes(shape, bytes));
    }
  }

  config::RunConfig config_of(const char* transforms_on, std::vector<std::string> overrides,
                              const std::string& layout = "dp=1") const {
    overrides.push_back("data.directory=\"" + directory_.path() + "\"");
    overrides.push_back(std::string("data.transforms_on=") + transforms_on);
    config::RunConfig config = config::parse_run_config(kConfig, "test", overrides);
    config.parallel.layout = layout::parse_layout(layout);
    return config;
  }

  Trace train(const config::RunConfig& config) const {
    return train_on_threads(config, config.parallel.layout.world_size(),
                            {.asynchronous = {},
                             .shared_memory = false,
                             .output_directory = {},
                             .device = device::DeviceKind::cuda});
  }

  test::TemporaryDirectory directory_;
};

#define NEEDS_GPUS(ranks) \
  if (!can_have(ranks)) GTEST_SKIP() << "this needs GPUs: ONLY_SKIPPED_TESTS"

TEST_F(PackedImagesTraining, HasTheBitsOfTransformsOnProcessors) {
  NEEDS_GPUS(1);
  for (const std::vector<std::string>& overrides : {std::vector<std::string>{},
                                                    {"precision.compute=BFLOAT16"},
                                                    {"trainer.micro_batch=2"},
                                                    {"data.prefetch_threads=0"},
                                                    {"data.prefetch_threads=3", "data.prefetch_depth=1"},
                                                    {"data.threads=AUTOMATIC"}})
    EXPECT_EQ(train(config_of("GPU", overrides)), train(config_of("CPU", overrides)))
        << (overrides.empty() ? "as it is" : overrides.front());
}

TEST_F(PackedImagesTraining, HasTheSameBitsInAnyLayout) {
  NEEDS_GPUS(4);
  const Trace one = train(config_of("CPU", {}));
  for (const char* layout : {"dp=2", "dp=1,pp=2", "dp=2,pp=2,schedule=gpipe", "dp=2,shard=optimizer",
                             "dp=1,pp=2,schedule=zero_bubble", "dp=1,pp=2,schedule=interleaved,chunks=2"})
    EXPECT_EQ(train(config_of("GPU", {}, layout)), one) << layout;
  // Ranks with one and with two leaves, of one micro-batch each.
  EXPECT_EQ(train(config_of("GPU", {"trainer.micro_batch=2"}, "dp=3")),
            train(config_of("CPU", {"trainer.micro_batch=2"})));
}

TEST_F(PackedImagesTraining, MovesAQuarterOfTheBytesAndPlansAllMemory) {
  NEEDS_GPUS(1);
  const auto plan = [&](const char* transforms_on, std::vector<std::string> overrides) {
    const config::RunConfig config = config_of(transforms_on, std::move(overrides));
    const compile::CompiledRun run = compile_run(config, {.device = device::DeviceKind::cuda});
    return plan_worker_memory(run, run.compile(0), config);
  };
  // An image of 16 x 16 x 3 is 768 bytes, with another one that it is mixed with; steps take 44 bytes each: 5
  // of both, 1 of mixing and 2 after it. A label is 4 bytes, a mixture 8; each field begins at a multiple of
  // 256. An evaluated image has one step.
  const int64_t training = 2 * 768 + (13 * 44 + 15) / 16 * 16, evaluation = 768 + 48;
  const auto placed = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
  const WorkerMemory packed = plan("GPU", {});
  EXPECT_EQ(packed.host.pinned_read_ahead_bytes,
            4 * (placed(training) + 512) + 4 * (placed(evaluation) + 512));
  EXPECT_EQ(packed.host.read_ahead_bytes, packed.host.pinned_read_ahead_bytes);
  const WorkerMemory plain = plan("CPU", {});
  EXPECT_EQ(plain.host.pinned_read_ahead_bytes, 2 * 4 * (4 * 768 + 512));
  // It lands in the device's plan.
  const compile::CompiledRun run = compile_run(config_of("GPU", {}), {.device = device::DeviceKind::cuda});
  for (const auto& instruction : run.compile(0).step.instructions)
    if (instruction.kind == program::InstructionKind::load)
      EXPECT_EQ(std::ranges::count_if(instruction.operands,
                                      [&](const program::Operand& operand) {
                                        return operand.role == program::Role::temporary &&
                                               operand.range.size_bytes == training;
                                      }),
                1);
}

TEST_F(PackedImagesTraining, IsRefusedOnProcessors) {
  const config::RunConfig config = config_of("GPU", {});
  const auto message = test::message_of<ConfigError>([&] { compile_run(config, {}); });
  EXPECT_THAT(message, Mentions("data.transforms_on"));
  EXPECT_THAT(message, Mentions("CPU"));
}

TEST_F(PackedImagesTraining, IsRefusedWithWhatGpusCannotDo) {
  const config::RunConfig config = config_of("GPU", {"data.transforms[1]={ affine { degrees: 10 } }"});
  EXPECT_THAT(
      test::message_of<ConfigError>([&] { compile_run(config, {.device = device::DeviceKind::cuda}); }),
      Mentions("data.transforms_on ... affine"));
}

}  // namespace
}  // namespace lockstep::train
