// The whole of training on the emulated GPU: lanes as streams, batches through pinned memory, verdicts and
// updates on the device, checkpoints from there. Memory that the host touches by mistake crashes; a missing
// event shows as other bits.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "data/test_files.h"
#include "lockstep/error.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"
#include "train/worker/fingerprint.h"
#include "train/worker/worker_memory.h"

namespace lockstep::train {
namespace {

constexpr const char* kCommon = R"(
format_version: 1
trainer { steps: 3 global_batch: 8 virtual_replicas: 4 micro_batch: 1 seed: 7 clip_norm: 0.5 eval_every_steps: 2 }
optimizer { learning_rate: 0.01 adamw {} weight_decay: 0.1 schedule { warmup_steps: 2 cosine { minimum: 0.001 } } }
parallel { reduction: REPRODUCIBLE bucket_bytes: 2048 }
)";
const char* const kModels[] = {R"(
model { mlp { image: 6 image: 6 image: 1 hidden: 17 hidden: 13 classes: 5 dropout: 0.3 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 5 shape: 6 shape: 6 shape: 1 } }
)",
                               R"(
model { lenet { image: 16 image: 16 image: 1 classes: 4 dropout: 0.2 batch_norm: true } }
data { synthetic { samples: 24 eval_samples: 9 classes: 4 shape: 16 shape: 16 shape: 1 } }
)",
                               R"(
model { gpt { vocabulary: 11 context: 6 layers: 2 heads: 2 width: 32 dropout: 0.1 } }
data { synthetic { samples: 40 eval_samples: 9 classes: 11 context: 6 } }
)"};

config::RunConfig config_of(const char* model, const std::vector<std::string>& overrides = {}) {
  return config::parse_run_config(std::string(kCommon) + model, "test", overrides);
}

/// One thread per rank needs a GPU of its own for each, of which the emulated one has any number.
bool can_have(int ranks) {
  const auto devices = device::probe_gpus().devices;
  return !devices.empty() && (ranks == 1 || devices[0].name == "emulated GPU");
}
#define NEEDS_GPUS(ranks)                                                      \
  if (!can_have(ranks))                                                        \
  GTEST_SKIP() << "this needs " << ranks << " GPUs for threads of one process" \
               << (can_have(1) ? "" : ": ONLY_SKIPPED_TESTS")

Trace train_on_gpu(const config::RunConfig& config, int ranks) {
  return train_on_threads(config, ranks,
                          {.asynchronous = {},
                           .shared_memory = false,
                           .output_directory = {},
                           .device = device::DeviceKind::cuda});
}

/// As of all layouts that are compared with it.
const Trace& one_gpu(const config::RunConfig& config) {
  return trace_of_one_rank(config, device::DeviceKind::cuda);
}
const Trace& one_cpu(const config::RunConfig& config) { return trace_of_one_rank(config); }

void expect_close(const Trace& actual, const Trace& expected, double tolerance) {
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t step = 0; step < expected.losses.size(); ++step) {
    EXPECT_NEAR(actual.losses[step], expected.losses[step], tolerance * std::fabs(expected.losses[step]))
        << "step " << step;
    EXPECT_NEAR(actual.norms[step], expected.norms[step], 20 * tolerance * expected.norms[step])
        << "step " << step;
  }
  EXPECT_NEAR(actual.eval_loss, expected.eval_loss, tolerance * std::fabs(expected.eval_loss));
}

class GpuTraining : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuTraining, FollowsTheCpuInFloat32) {
  NEEDS_GPUS(1);
  const config::RunConfig config = config_of(GetParam());
  expect_close(one_gpu(config), one_cpu(config), 1e-4);
}

TEST_P(GpuTraining, FollowsTheCpuInNarrowTypes) {
  NEEDS_GPUS(1);
  for (const char* type : {"BFLOAT16", "FLOAT16"}) {
    const config::RunConfig config = config_of(GetParam(), {std::string("precision.compute=") + type});
    expect_close(one_gpu(config), one_cpu(config), 2e-2);
  }
}

TEST_P(GpuTraining, FollowsTheCpuInTf32) {
  NEEDS_GPUS(1);
  const config::RunConfig config = config_of(GetParam(), {"precision.compute=TF32"});
  expect_close(one_gpu(config), one_cpu(config), 2e-3);
}

TEST_P(GpuTraining, HasTheSameBitsTwice) {
  NEEDS_GPUS(1);
  for (const char* type : {"FLOAT32", "TF32", "BFLOAT16"}) {
    const config::RunConfig config = config_of(GetParam(), {std::string("precision.compute=") + type});
    EXPECT_EQ(train_on_gpu(config, 1), one_gpu(config)) << type;
  }
}

TEST_P(GpuTraining, HasTheSameBitsOnAnyNumberOfGpus) {
  NEEDS_GPUS(3);
  for (const char* type : {"FLOAT32", "TF32", "BFLOAT16"}) {
    const config::RunConfig config = config_of(GetParam(), {std::string("precision.compute=") + type});
    const Trace& one = one_gpu(config);
    for (const int ranks : {2, 3}) EXPECT_EQ(train_on_gpu(config, ranks), one) << ranks << " GPUs, " << type;
  }
}

/// Optimizers that measure parameters and updates.
TEST(GpuLayerwise, HasTheSameBitsOnAnyNumberOfGpus) {
  NEEDS_GPUS(3);
  for (const char* optimizer :
       {"optimizer.lars={trust: 0.1}", "optimizer.lamb={}", "optimizer.adaptive_clip={}"})
    for (const char* type : {"FLOAT32", "BFLOAT16"}) {
      const config::RunConfig config =
          config_of(kModels[1], {std::string("precision.compute=") + type, optimizer});
      const Trace one = train_on_gpu(config, 1);
      for (const int ranks : {2, 3})
        EXPECT_EQ(train_on_gpu(config, ranks), one) << ranks << " GPUs, " << type << ", " << optimizer;
      for (const char* layout : {"dp=2,shard=optimizer", "dp=2,sync=ps,servers=1", "dp=1,pp=2"}) {
        config::RunConfig other = config;
        other.parallel.layout = layout::parse_layout(layout);
        EXPECT_EQ(train_on_gpu(other, other.parallel.layout.world_size()), one)
            << layout << ", " << type << ", " << optimizer;
      }
      if (std::string(type) == "FLOAT32") expect_close(one, train_on_threads(config, 1), 1e-4);
    }
}

/// Muon, whose products a GPU's library computes. Servers on processors would have other bits.
TEST(GpuMuon, HasTheSameBitsOnAnyNumberOfGpus) {
  NEEDS_GPUS(3);
  for (const char* type : {"FLOAT32", "BFLOAT16"}) {
    const config::RunConfig config = config_of(
        kModels[1],
        {std::string("precision.compute=") + type, "optimizer.muon={adamw: {learning_rate: 0.003}}"});
    const Trace one = train_on_gpu(config, 1);
    for (const char* layout :
         {"dp=2", "dp=3,shard=optimizer", "dp=2,sync=ps,placement=colocated", "dp=1,pp=2"}) {
      config::RunConfig other = config;
      other.parallel.layout = layout::parse_layout(layout);
      EXPECT_EQ(train_on_gpu(other, other.parallel.layout.world_size()), one) << layout << ", " << type;
    }
    if (std::string(type) == "FLOAT32") expect_close(one, train_on_threads(config, 1), 1e-4);
  }
}

/// Micro-batches hold as many leaves as make a node of the tree, so that kernels of several sizes work in one
/// job: with 20 leaves 4, 2 and 1 of them on three GPUs, with 8 leaves all of them on one and 2 and 1 on
/// three.
TEST_P(GpuTraining, HasTheSameBitsWithMicroBatchesOfUnlikeSizes) {
  NEEDS_GPUS(3);
  struct Case {
    const char* type;
    int leaves, limit;
    std::vector<int> sizes;
  };
  for (const Case& one : {Case{"FLOAT32", 20, 32, {4, 2, 1}}, Case{"BFLOAT16", 8, 64, {2, 1}}}) {
    const auto config = [&](int micro_batch) {
      return config_of(GetParam(),
                       {std::string("precision.compute=") + one.type, "data.synthetic.samples=320",
                        "trainer.steps=2", "trainer.virtual_replicas=" + std::to_string(one.leaves),
                        "trainer.global_batch=" + std::to_string(8 * one.leaves),
                        "trainer.micro_batch=" + std::to_string(micro_batch)});
    };
    const compile::CompiledRun run =
        compile_run(config(one.limit), {.world_size = 3, .device = device::DeviceKind::cuda});
    EXPECT_EQ(run.division().sizes(), one.sizes);
    const Trace separate = train_on_gpu(config(8), 1);
    for (const int ranks : {1, 3})
      EXPECT_EQ(train_on_gpu(config(one.limit), ranks), separate) << ranks << " GPUs, " << one.type;
  }
}

TEST_P(GpuTraining, SkipsWhatOverflowsOnAnyNumberOfGpus) {
  NEEDS_GPUS(3);
  // One step's gradients overflow at this scale; at half of it the others' do not.
  const config::RunConfig config =
      config_of(GetParam(), {"precision.compute=FLOAT16", "precision.loss_scaling.initial_scale=1048576"});
  const Trace& one = one_gpu(config);
  const auto overflows =
      std::count_if(one.norms.begin(), one.norms.end(), [](double norm) { return !std::isfinite(norm); });
  EXPECT_TRUE(overflows > 0 && overflows < 3) << overflows;
  for (const int ranks : {2, 3}) EXPECT_EQ(train_on_gpu(config, ranks), one) << ranks << " GPUs";
}

TEST_P(GpuTraining, ShardsOfTheOptimizerHaveTheSameBitsOnAnyNumberOfGpus) {
  NEEDS_GPUS(3);
  for (const char* type : {"precision.compute=FLOAT32", "precision.compute=BFLOAT16"}) {
    const Trace& one = one_gpu(config_of(GetParam(), {type}));
    for (const int ranks : {2, 3})
      EXPECT_EQ(train_on_gpu(config_of(GetParam(), {type, "parallel.shard=OPTIMIZER"}), ranks), one)
          << ranks << " GPUs, " << type;
  }
  // FAST sums go around a ring: a library's are not cut on borders of chunks.
  const std::vector<std::string> fast{"parallel.reduction=FAST", "parallel.shard=OPTIMIZER"};
  expect_close(train_on_gpu(config_of(GetParam(), fast), 2),
               one_cpu(config_of(GetParam(), {"parallel.reduction=FAST"})), 1e-3);
}

TEST_P(GpuTraining, ServersHaveTheSameBitsOnAnyNumberOfGpus) {
  NEEDS_GPUS(4);
  for (const char* type : {"precision.compute=FLOAT32", "precision.compute=BFLOAT16"}) {
    const Trace& one = one_gpu(config_of(GetParam(), {type}));
    for (const char* layout : {"dp=2,sync=ps", "dp=2,sync=ps,servers=2",
                               "dp=3,sync=ps,servers=2,placement=colocated", "dp=3,sync=ps,aggregate=host"}) {
      config::RunConfig config = config_of(GetParam(), {type});
      config.parallel.layout = layout::parse_layout(layout);
      EXPECT_EQ(train_on_gpu(config, config.parallel.layout.world_size()), one) << layout << ", " << type;
      if (config.parallel.layout.placement == layout::ServerPlacement::colocated) continue;
      config.parallel.servers_on_gpus = true;
      EXPECT_EQ(train_on_gpu(config, config.parallel.layout.world_size()), one)
          << layout << ", " << type << ", on GPUs of their own";
    }
  }
}

/// Without a verdict, parameters come back while others' gradients are still pushed.
TEST_P(GpuTraining, ServersOnProcessorsUpdateAsGradientsLand) {
  NEEDS_GPUS(3);
  const std::vector<std::string> as_it_lands{"trainer.nonfinite=IGNORE", "trainer.clip_norm=0"};
  const Trace& one = one_gpu(config_of(GetParam(), as_it_lands));
  config::RunConfig config = config_of(GetParam(), as_it_lands);
  config.parallel.layout = layout::parse_layout("dp=2,sync=ps,servers=2");
  EXPECT_EQ(train_on_gpu(config, 4).parameters, one.parameters);
}

TEST_P(GpuTraining, PipelinesHaveTheSameBitsOnAnyNumberOfGpus) {
  NEEDS_GPUS(4);
  for (const char* type : {"precision.compute=FLOAT32", "precision.compute=BFLOAT16"}) {
    const Trace& one = one_gpu(config_of(GetParam(), {type}));
    for (const char* layout :
         {"dp=1,pp=2", "dp=1,pp=3,schedule=gpipe", "dp=2,pp=2,recompute=full",
          "dp=1,pp=2,schedule=zero_bubble", "dp=2,pp=2,shard=optimizer", "dp=1,pp=3,sync=ps",
          "dp=1,recompute=selective", "dp=1,pp=2,schedule=zero_bubble,recompute=selective",
          "dp=2,pp=2,sync=ps,servers=2,placement=colocated"}) {
      config::RunConfig config = config_of(GetParam(), {type});
      config.parallel.layout = layout::parse_layout(layout);
      EXPECT_EQ(train_on_gpu(config, config.parallel.layout.world_size()), one) << layout << ", " << type;
    }
  }
}

/// Pulls and pushes of one process, through pinned memory.
TEST_P(GpuTraining, WithAServerOnItsHostFollowsTheCpu) {
  NEEDS_GPUS(1);
  config::RunConfig config = config_of(GetParam(), {"parallel.reduction=FAST"});
  const Trace &plain = one_gpu(config), &on_cpu = one_cpu(config);
  config.parallel.layout = layout::parse_layout("dp=1,sync=ps,placement=colocated,mode=async");
  const Trace served = train_on_gpu(config, 1);
  expect_close(served, on_cpu, 1e-4);
  expect_close(served, plain, 1e-4);
}

TEST_P(GpuTraining, FastSumsAreTheLibrarys) {
  NEEDS_GPUS(2);
  const config::RunConfig config = config_of(GetParam(), {"parallel.reduction=FAST"});
  expect_close(train_on_gpu(config, 2), one_cpu(config), 1e-3);
}

/// Shares of a narrow bucket begin anywhere, so that casts cannot always take several elements at once.
TEST_P(GpuTraining, SumsOfBfloat16HaveTheSameBitsOnAnyNumberOfGpus) {
  NEEDS_GPUS(4);
  const std::string wire = "parallel.wire=BFLOAT16";
  const Trace& one = one_gpu(config_of(GetParam(), {wire}));
  EXPECT_NE(one, one_gpu(config_of(GetParam())));
  expect_close(one, one_cpu(config_of(GetParam(), {wire})), 1e-3);
  for (const char* layout : {"dp=2", "dp=3", "dp=3,shard=optimizer", "dp=1,pp=2,schedule=zero_bubble",
                             "dp=2,pp=2", "dp=2,sync=ps", "dp=3,sync=ps,servers=2,placement=colocated"}) {
    config::RunConfig config = config_of(GetParam(), {wire});
    config.parallel.layout = layout::parse_layout(layout);
    EXPECT_EQ(train_on_gpu(config, config.parallel.layout.world_size()), one) << layout;
  }
  const std::vector<std::string> fast{wire, "parallel.reduction=FAST"};
  expect_close(train_on_gpu(config_of(GetParam(), fast), 2), one_cpu(config_of(GetParam(), fast)), 1e-2);
}

TEST_P(GpuTraining, RoundsWithFeedbackToTheSameBitsOnAnyNumberOfGpus) {
  NEEDS_GPUS(3);
  if (std::string(GetParam()).find("batch_norm") != std::string::npos)
    GTEST_SKIP() << "error feedback is refused with running statistics";
  const std::vector<std::string> wire{"parallel.wire=BFLOAT16"},
      feedback{"parallel.wire=BFLOAT16", "parallel.error_feedback=true"};
  const Trace& one = one_gpu(config_of(GetParam(), feedback));
  EXPECT_NE(one, one_gpu(config_of(GetParam(), wire)));
  expect_close(one, one_cpu(config_of(GetParam(), feedback)), 1e-3);
  for (const char* layout :
       {"dp=2", "dp=3,shard=optimizer", "dp=1,pp=2,schedule=zero_bubble", "dp=2,sync=ps"}) {
    config::RunConfig config = config_of(GetParam(), feedback);
    config.parallel.layout = layout::parse_layout(layout);
    EXPECT_EQ(train_on_gpu(config, config.parallel.layout.world_size()), one) << layout;
  }
  config::RunConfig fast = config_of(GetParam(), feedback);
  fast.parallel.reduction = layout::Reduction::fast;
  expect_close(train_on_gpu(fast, 2), one_cpu(config_of(GetParam(), {"parallel.reduction=FAST"})), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(All, GpuTraining, ::testing::ValuesIn(kModels));

/// What is fused rounds otherwise, so no key of a layout may decide it.
TEST(GpuTrainingOnce, FusedGelusHaveTheSameBitsInAnyLayout) {
  NEEDS_GPUS(2);
  const std::vector<std::string> fused{"precision.compute=BFLOAT16", "precision.fused_gelu=true"};
  const Trace& one = one_gpu(config_of(kModels[2], fused));
  for (const char* layout : {"dp=2", "dp=1,recompute=selective", "dp=1,recompute=full",
                             "dp=1,pp=2,recompute=selective", "dp=1,pp=2,schedule=zero_bubble"}) {
    config::RunConfig config = config_of(kModels[2], fused);
    config.parallel.layout = layout::parse_layout(layout);
    EXPECT_EQ(train_on_gpu(config, config.parallel.layout.world_size()), one) << layout;
  }
}

TEST(GpuTrainingOnce, FusedGelusRoundLessAndFollowTheCpu) {
  NEEDS_GPUS(1);
  for (const char* type : {"precision.compute=BFLOAT16", "precision.compute=FLOAT16"}) {
    const config::RunConfig config = config_of(kModels[2], {type, "precision.fused_gelu=true"});
    const Trace& one = one_gpu(config);
    expect_close(one, one_cpu(config), 2e-2);
    EXPECT_NE(one, one_gpu(config_of(kModels[2], {type}))) << "GELUs were not fused";
    if (can_have(2)) {
      EXPECT_EQ(train_on_gpu(config, 2), one);
    }
  }
}

/// Without dropout the gradient of a residual sum, which a stage sends, is that of the product before it,
/// too.
TEST(GpuTrainingOnce, HalvesOfBackwardHaveTheSameBitsWhereProductsAreAdded) {
  NEEDS_GPUS(3);
  for (const char* gelu : {"precision.fused_gelu=false", "precision.fused_gelu=true"}) {
    config::RunConfig config =
        config_of(kModels[2], {"model.gpt.dropout=0", "precision.compute=BFLOAT16", gelu});
    const Trace& one = one_gpu(config);
    for (const char* layout : {"dp=1,pp=2,schedule=zero_bubble", "dp=1,pp=3,schedule=zero_bubble"}) {
      config.parallel.layout = layout::parse_layout(layout);
      EXPECT_EQ(train_on_gpu(config, config.parallel.layout.world_size()), one) << layout << ", " << gelu;
    }
  }
}

TEST(GpuTrainingOnce, EveryOptimizerFollowsTheCpu) {
  NEEDS_GPUS(1);
  for (const char* optimizer :
       {"optimizer.sgd.momentum=0", "optimizer.sgd.momentum=0.9", "optimizer.adam.beta1=0.8"}) {
    const config::RunConfig config = config_of(kModels[0], {optimizer});
    expect_close(one_gpu(config), one_cpu(config), 1e-4);
  }
}

/// Without shards updates write the two-byte copies; with shards they are cast in every step.
TEST(GpuTrainingOnce, UpdatesThatWriteTheCopyHaveTheBitsOfCastsForEveryOptimizer) {
  NEEDS_GPUS(2);
  for (const char* optimizer :
       {"optimizer.sgd.momentum=0", "optimizer.sgd.momentum=0.9", "optimizer.adam.beta1=0.8"})
    for (const char* type : {"precision.compute=BFLOAT16", "precision.compute=FLOAT16"}) {
      config::RunConfig config = config_of(kModels[2], {optimizer, type});
      const Trace& one = one_gpu(config);
      config.parallel.layout = layout::parse_layout("dp=2,shard=optimizer");
      EXPECT_EQ(train_on_gpu(config, 2), one) << optimizer << ", " << type;
    }
}

/// That this is what a device allocates is checked behind every training (thread_ranks.cpp).
TEST(GpuTrainingOnce, FrozenLayersGroupsAndAveragesFollowTheCpuOnAnyNumberOfGpus) {
  NEEDS_GPUS(1);
  const std::vector<std::string> features = {
      "model.frozen=[\"h.0.*\", \"h.1.mlp.c_fc\"]", "optimizer.ema={decay: 0.5 evaluate: true}",
      "optimizer.groups={parameters: [\"*.bias\", \"wpe.*\"] weight_decay: 0.3 learning_rate_factor: 0.5}"};
  for (const char* type : {"precision.compute=FLOAT32", "precision.compute=BFLOAT16"}) {
    auto overrides = features;
    overrides.emplace_back(type);
    config::RunConfig config = config_of(kModels[2], overrides);
    const Trace& one = one_gpu(config);
    if (config.precision.storage() == DType::float32) expect_close(one, one_cpu(config), 1e-4);
    if (!can_have(2)) continue;
    EXPECT_EQ(train_on_gpu(config, 2), one);
    config.parallel.layout.shard = layout::ShardedState::optimizer;
    EXPECT_EQ(train_on_gpu(config, 2), one);
  }
}

TEST(GpuTrainingOnce, TheFingerprintHasTheOrderOfSums) {
  NEEDS_GPUS(1);
  const auto gpu = device::make_cuda_device(0);
  EXPECT_THAT(arithmetic_fingerprint(*gpu, 8),
              testing::AllOf(testing::HasSubstr(" sums=2 "), testing::HasSubstr(" micro_batch=8 ")));
}

TEST(GpuTrainingOnce, TheHostsMemoryIsPlannedBesideTheDevices) {
  NEEDS_GPUS(1);
  const auto planned = [](const char* type) {
    const config::RunConfig config = config_of(kModels[0], {std::string("precision.compute=") + type});
    const compile::CompiledRun run = compile_run(config, {.device = device::DeviceKind::cuda});
    return plan_worker_memory(run, run.compile(0), config);
  };
  const WorkerMemory plan = planned("FLOAT32");
  // 36 x 17 + 17 + 17 x 13 + 13 + 13 x 5 + 5 = 933 parameters of 4 bytes, two moments of each; rounded up to
  // 256.
  EXPECT_EQ(plan.host.checkpoint_copy_bytes, 11264);
  EXPECT_EQ(plan.device.space_bytes[static_cast<size_t>(program::Space::host)], 0);
  // The largest weight; twice image and label, 256 bytes each, and constants of 64, for step, replay and
  // evaluation; four records of 16 bytes and one of 32.
  EXPECT_EQ(plan.host.staging_bytes, 36 * 17 * 4 + 2 * 3 * 2 * 256 + 3 * 64 + 4 * 16 + 32);
  // Four images and labels, twice, of 256 bytes each, from which the device copies.
  EXPECT_EQ(plan.host.read_ahead_bytes, 2 * 4 * 2 * 256);
  EXPECT_EQ(plan.host.pinned_read_ahead_bytes, plan.host.read_ahead_bytes);
  // In two bytes; five images on their way there are as they were read, in ordinary memory.
  EXPECT_EQ(planned("BFLOAT16").host.read_ahead_bytes, 2 * (4 * 2 * 256 + 5 * 36 * 4));
  EXPECT_EQ(planned("BFLOAT16").host.pinned_read_ahead_bytes, 2 * 4 * 2 * 256);
}

TEST(GpuTrainingOnce, AnOverflowUpdatesNothing) {
  NEEDS_GPUS(1);
  // The scale is so large that gradients overflow until it has been halved a few times.
  const config::RunConfig config =
      config_of(kModels[0], {"precision.compute=FLOAT16",
                             "precision.loss_scaling={initial_scale: 1073741824 maximum: 1073741824}",
                             "trainer.steps=2"});
  const Trace gpu = train_on_gpu(config, 1), cpu = train_on_threads(config, 1);
  EXPECT_EQ(gpu.parameters, cpu.parameters);
}

TEST(GpuTrainingOnce, GoesOnFromItsCheckpointToTheSameBitsAndFromTheCpusNearby) {
  NEEDS_GPUS(1);
  const std::vector<std::string> saves{"checkpoint.every_steps=2", "precision.compute=FLOAT16"};
  const auto train = [&](device::DeviceKind device, const std::string& folder, const std::string& resume) {
    auto overrides = saves;
    if (!resume.empty())
      overrides.push_back("checkpoint.resume_path='" + resume + "/checkpoints/step-00000002'");
    return train_on_threads(
        config_of(kModels[1], overrides), 1,
        {.asynchronous = {}, .shared_memory = false, .output_directory = folder, .device = device});
  };
  const test::TemporaryDirectory gpu, cpu, again, back, there;
  const Trace whole = train(device::DeviceKind::cuda, gpu.path(), ""),
              on_cpu = train(device::DeviceKind::cpu, cpu.path(), "");
  const Trace resumed = train(device::DeviceKind::cuda, again.path(), gpu.path());
  EXPECT_EQ(resumed.losses, std::vector<double>{whole.losses.back()});
  EXPECT_EQ(resumed.parameters, whole.parameters);
  EXPECT_EQ(resumed.eval_loss, whole.eval_loss);
  const Trace to_gpu = train(device::DeviceKind::cuda, there.path(), cpu.path()),
              to_cpu = train(device::DeviceKind::cpu, back.path(), gpu.path());
  EXPECT_NEAR(to_gpu.losses.at(0), on_cpu.losses.back(), 2e-2 * on_cpu.losses.back());
  EXPECT_NEAR(to_cpu.losses.at(0), whole.losses.back(), 2e-2 * whole.losses.back());
}

TEST(GpuTrainingOnce, SumsAreAskedForByNameWhereTheyExist) {
  NEEDS_GPUS(2);
  const config::RunConfig config = config_of(kModels[0], {"parallel.reduction=FAST"});
  const Trace expected = train_on_gpu(config, 2);
  for (const char* algorithm : {"LIBRARY", "RING", "TREE"})
    EXPECT_EQ(train_on_gpu(config_of(kModels[0], {"parallel.reduction=FAST",
                                                  std::string("parallel.algorithm=") + algorithm}),
                           2),
              expected);
  EXPECT_THROW(train_on_gpu(config_of(kModels[0], {"parallel.algorithm=SHARED_MEMORY"}), 2), ConfigError);
  EXPECT_THROW(
      train_on_threads(config_of(kModels[0], {"parallel.reduction=FAST", "parallel.algorithm=TREE"}), 2),
      ConfigError);
}

/// GPT-2's logits of 64 samples are 3.3 billion.
TEST(GpuTrainingOnce, TensorsMayHaveAsManyElementsAs32BitsCount) {
  const auto compile = [](int micro_batch, device::DeviceKind device) {
    const std::string batch = std::to_string(micro_batch);
    compile_run(config::parse_run_config(
                    "format_version: 1 trainer { steps: 1 virtual_replicas: 1 global_batch: " + batch +
                        " micro_batch: " + batch +
                        " } optimizer { learning_rate: 0.1 sgd {} } precision { compute: BFLOAT16 }"
                        " model { gpt { vocabulary: 50304 context: 1024 layers: 1 heads: 1 width: 32 } }"
                        " data { synthetic { samples: 100 eval_samples: 1 classes: 50304 } }",
                    "test", {}),
                {.device = device});
  };
  EXPECT_NO_THROW(compile(83, device::DeviceKind::cuda));
  EXPECT_THROW(compile(84, device::DeviceKind::cuda), ConfigError);
  EXPECT_NO_THROW(compile(41, device::DeviceKind::cpu));
  EXPECT_THROW(compile(42, device::DeviceKind::cpu), ConfigError);
}

TEST(GpuTrainingOnce, StampsOfItsClockLieBetweenTheHostsAroundThem) {
  NEEDS_GPUS(1);
  const config::RunConfig config = config_of(kModels[0]);
  run_ranks(1, [&](int, comm::Communicator& world) {
    run::StampRecorder recorder;
    recorder.open(1, 2, 100000);
    Worker worker(config,
                  {.rank = 0, .world_size = 1, .device = device::DeviceKind::cuda, .recorder = &recorder});
    worker.connect(world);
    worker.start_reading(0);
    worker.run_step({.iteration = 0});
    worker.finish_step();
    const auto before = Clock::now();
    worker.run_step({.iteration = 1});
    worker.run_step({.iteration = 2});
    worker.finish_step();
    const auto after = Clock::now();
    const auto stamps = recorder.stamps();
    const auto instructions = std::ranges::count(stamps, run::StampKind::instruction, &run::Stamp::kind);
    EXPECT_EQ(instructions, 2 * std::ssize(worker.programs().step.instructions));
    EXPECT_GT(std::ssize(stamps), instructions) << "kernels are stamped as well";
    const auto error = std::chrono::duration<double, std::milli>(recorder.device_error_ms());
    EXPECT_GT(error.count(), 0);
    for (const run::Stamp& stamp : stamps) {
      EXPECT_GE(stamp.begin + error, before);
      EXPECT_LE(stamp.begin, stamp.end + error);
      EXPECT_LE(stamp.end - error, after);
    }
  });
}

/// Its second batch cannot be read.
class BrokenBatches : public run::BatchSource {
 public:
  void load(uint64_t, int64_t position, std::span<const Tensor>) override {
    if (position > 0) throw DataError("the disk is gone");
  }
};

TEST(GpuTrainingOnce, AnErrorOfTheHostNamesItsInstructionAndAbandonsTheOthers) {
  NEEDS_GPUS(1);
  const config::RunConfig config = config_of(kModels[0]);
  run_ranks(1, [&](int, comm::Communicator& world) {
    Worker worker(config, {.rank = 0, .world_size = 1, .device = device::DeviceKind::cuda});
    worker.connect(world);
    BrokenBatches batches;
    run::ExecutionContext context{.graph = worker.compiled().graph(),
                                  .code = worker.compiled().training_code(),
                                  .memory = worker.memory(),
                                  .device = worker.device(),
                                  .optimizer = config.optimizer};
    context.first_samples = {0, 1, 2, 3, 4, 5, 6, 7};
    context.batches = &batches;
    const auto solo = comm::make_solo_communicator();
    context.communicators.assign(worker.programs().step.groups.size(), solo.get());
    const auto executor = run::make_stream_executor(worker.programs().step, context, {}, worker.device());
    try {
      executor->run({});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("the disk is gone (rank 0, step instruction"));
      EXPECT_EQ(error.code(), ExitCode::data);
    }
  });
}

}  // namespace
}  // namespace lockstep::train
