// Training with two-byte storage, from config to parameters.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/half.h"
#include "data/test_files.h"
#include "mentions.h"
#include "tensor/convert.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"
#include "train/worker/initialize.h"
#include "train/worker/model_state.h"
#include "train/worker/worker_memory.h"

namespace lockstep::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kPrecisionCommon = R"(
format_version: 1
trainer { steps: 8 global_batch: 12 virtual_replicas: 4 micro_batch: 2 seed: 7 clip_norm: 0.5 eval_every_steps: 4 }
optimizer { learning_rate: 0.01 adamw {} weight_decay: 0.1 schedule { warmup_steps: 2 cosine { minimum: 0.001 } } }
parallel { reduction: REPRODUCIBLE bucket_bytes: 2048 }
)";
constexpr const char* kPrecisionMlp = R"(
model { mlp { image: 6 image: 6 image: 1 hidden: 17 hidden: 13 classes: 5 dropout: 0.3 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 5 } }
)";
constexpr const char* kPrecisionLenet = R"(
model { lenet { image: 16 image: 16 image: 1 classes: 4 dropout: 0.2 batch_norm: true } }
data { synthetic { samples: 40 eval_samples: 23 classes: 4 } }
)";
// Embeddings and the head share a weight, which is read narrow; layer norm's are read as they are.
constexpr const char* kGpt = R"(
model { gpt { vocabulary: 11 context: 6 layers: 2 heads: 2 width: 8 dropout: 0.1 } }
data { synthetic { samples: 40 eval_samples: 23 classes: 11 context: 6 } }
)";

config::RunConfig precision_config(const char* model, const std::vector<std::string>& overrides) {
  return config::parse_run_config(std::string(kPrecisionCommon) + model, "test", overrides);
}

class NarrowTraining : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  config::RunConfig config(std::vector<std::string> overrides = {}) const {
    overrides.push_back(std::string("precision.compute=") + std::get<1>(GetParam()));
    return precision_config(std::get<0>(GetParam()), overrides);
  }
};
INSTANTIATE_TEST_SUITE_P(All, NarrowTraining,
                         testing::Combine(testing::Values(kPrecisionMlp, kPrecisionLenet, kGpt),
                                          testing::Values("BFLOAT16", "FLOAT16")),
                         [](const auto& info) {
                           const char* model = std::get<0>(info.param);
                           return std::string(model == kPrecisionMlp     ? "mlp_"
                                              : model == kPrecisionLenet ? "lenet_"
                                                                         : "gpt_") +
                                  std::get<1>(info.param);
                         });

TEST_P(NarrowTraining, HasTheSameBitsOnAnyNumberOfWorkers) {
  const Trace one = train_on_threads(config(), 1);
  ASSERT_EQ(one.losses.size(), 8u);
  for (const int ranks : {2, 3, 4}) EXPECT_EQ(train_on_threads(config(), ranks), one) << ranks << " workers";
}

TEST_P(NarrowTraining, HasTheSameBitsOnLanesThatRunAtOnceAndInSharedMemory) {
  const Trace one = train_on_threads(config(), 1);
  EXPECT_EQ(train_on_threads(config(), 2,
                             {.asynchronous = device::AsyncCpuOptions{.jitter_seed = 5, .max_jitter_us = 100},
                              .shared_memory = true,
                              .output_directory = {}}),
            one);
}

TEST_P(NarrowTraining, FollowsFloat32AndIsNotIt) {
  const Trace narrow = train_on_threads(config(), 1);
  const Trace wide = train_on_threads(precision_config(std::get<0>(GetParam()), {}), 1);
  EXPECT_NE(narrow.parameters, wide.parameters);
  EXPECT_NEAR(narrow.losses[0], wide.losses[0], 0.005 * wide.losses[0]);
  EXPECT_NEAR(narrow.norms[0], wide.norms[0], 0.02 * wide.norms[0]);
  // Adam's first steps go by the sign of a gradient, however small it is.
  for (size_t i = 1; i < wide.losses.size(); ++i)
    EXPECT_NEAR(narrow.losses[i], wide.losses[i], 0.1 * wide.losses[i]) << i;
  EXPECT_NEAR(narrow.eval_loss, wide.eval_loss, 0.1 * wide.eval_loss);
}

TEST_P(NarrowTraining, ProgramsAreProven) {
  for (const int workers : {1, 2, 3, 4})
    EXPECT_NO_THROW(compile_run(config(), {.world_size = workers}).check()) << workers;
}

TEST(Precision, Tf32IsFloat32OnCpus) {
  EXPECT_EQ(train_on_threads(precision_config(kPrecisionMlp, {"precision.compute=TF32"}), 2),
            train_on_threads(precision_config(kPrecisionMlp, {}), 2));
}

TEST(Precision, UpdatingBucketsAsTheyLandChangesNoBit) {
  const std::vector<std::string> plain{"precision.compute=BFLOAT16", "trainer.clip_norm=0"};
  auto as_it_lands = plain;
  as_it_lands.push_back("trainer.nonfinite=IGNORE");
  EXPECT_EQ(train_on_threads(precision_config(kGpt, as_it_lands), 2),
            train_on_threads(precision_config(kGpt, plain), 2));
}

TEST(Precision, TwoByteStorageTakesHalfOfTheActivationsAndAddsACopyOfTheWeights) {
  const auto bytes = [](const char* compute, program::Category category) {
    const config::RunConfig config =
        precision_config(kPrecisionLenet, {std::string("precision.compute=") + compute});
    const compile::CompiledRun run = compile_run(config, {});
    return plan_worker_memory(run, run.compile(0), config)
        .device.category_bytes[static_cast<size_t>(category)];
  };
  const auto ratio = [&](program::Category category) {
    return static_cast<double>(bytes("BFLOAT16", category)) / static_cast<double>(bytes("FLOAT32", category));
  };
  EXPECT_NEAR(ratio(program::Category::parameters), 1.5, 0.01);  // places are rounded up to 256 bytes
  EXPECT_EQ(ratio(program::Category::gradients), 1);
  EXPECT_EQ(ratio(program::Category::optimizer_state), 1);
  EXPECT_LT(ratio(program::Category::activations), 0.65);
}

/// Runs `body` with a worker that has its first parameters, alone.
void with_worker(const config::RunConfig& config, const std::function<void(Worker&)>& body) {
  run_ranks(1, [&](int, comm::Communicator& world) {
    Worker worker(config, {.rank = 0, .world_size = 1, .asynchronous = {}});
    worker.connect(world);
    const auto& graph = worker.compiled().graph();
    for (const HeldParameter& held : worker.held_parameters())
      initialize_parameter(graph.parameter(held.parameter), config.trainer.seed, held.part,
                           {held.data, static_cast<size_t>(held.part.count())});
    body(worker);
  });
}

TEST(Precision, AStepReadsTheParametersRounded) {
  for (const char* compute : {"BFLOAT16", "FLOAT16"})
    with_worker(precision_config(kGpt, {std::string("precision.compute=") + compute}), [](Worker& worker) {
      worker.run_step({});
      worker.run_step({.iteration = 1});
      worker.run_step(
          {.iteration = 2, .suppress_updates = true});  // so that nothing has changed since a step read it
      const program::Program& program = worker.programs().step;
      const DType dtype = worker.compiled().graph().compute;
      int compared = 0;
      for (size_t p = 0; p < program.parameters.size(); ++p) {
        const auto& place = program.parameters[p];
        ASSERT_GE(place.narrow_buffer, 0) << place.name;
        const int64_t count = place.size_bytes / 4;
        std::vector<uint16_t> expected(static_cast<size_t>(count));
        tensor::convert(expected.data(), dtype, worker.parameter_data(static_cast<int>(p)), DType::float32,
                        count);
        const auto* copy = reinterpret_cast<const uint16_t*>(
            worker.memory().at(program, {place.narrow_buffer, place.narrow_offset, 2 * count}));
        EXPECT_EQ(std::vector<uint16_t>(copy, copy + count), expected) << place.name;
        ++compared;
      }
      EXPECT_GT(compared, 10);
    });
}

/// With shards the copy is cast in every step, from parameters that are gathered; without, by the updates.
TEST(Precision, UpdatesThatWriteTheCopyHaveTheBitsOfCastsForEveryOptimizer) {
  const std::vector<std::vector<std::string>> rules = {
      {"optimizer.sgd={}"},
      {"optimizer.sgd={momentum: 0.9}"},
      {"optimizer.sgd={momentum: 0.9 nesterov: true}"},
      {"optimizer.adam={}"},
      {"optimizer.adamw={}"},
      // Evaluations put averages into the places of parameters.
      {"optimizer.adamw={}", "optimizer.ema={decay: 0.5 evaluate: true}"}};
  for (const auto& rule : rules)
    for (const char* type : {"precision.compute=BFLOAT16", "precision.compute=FLOAT16"}) {
      std::vector<std::string> overrides = rule;
      overrides.insert(overrides.end(), {type, "trainer.steps=5", "trainer.eval_every_steps=2"});
      config::RunConfig config = precision_config(kGpt, overrides);
      const Trace one = train_on_threads(config, 1);
      for (const char* layout : {"dp=2,shard=optimizer", "dp=1,pp=2", "dp=2,sync=ps,servers=1"}) {
        config.parallel.layout = layout::parse_layout(layout);
        EXPECT_EQ(train_on_threads(config, config.parallel.layout.world_size()), one)
            << layout << ", " << rule.back() << ", " << type;
      }
    }
}

/// An evaluation with averages in the places of parameters leaves copies of these behind.
TEST(Precision, WhatOthersWriteBetweenStepsIsCastAnew) {
  with_worker(precision_config(kGpt, {"precision.compute=BFLOAT16"}), [](Worker& worker) {
    const program::Program& program = worker.programs().step;
    const auto& place = program.parameters[0];
    const auto copy = [&] {
      return *reinterpret_cast<const uint16_t*>(
          worker.memory().at(program, {place.narrow_buffer, place.narrow_offset, 2}));
    };
    worker.run_step({});
    worker.window().write(worker.parameter_data(0), 4, [](void* at) { *static_cast<float*>(at) = 3.5f; });
    EXPECT_NE(copy(), bfloat16(3.5f).bits);
    worker.run_step({.iteration = 1, .suppress_updates = true});
    EXPECT_EQ(copy(), bfloat16(3.5f).bits);
  });
}

TEST(Precision, ModelInputsAreRoundedWhereBatchesAreRead) {
  with_worker(precision_config(kPrecisionMlp, {"precision.compute=BFLOAT16", "data.shuffle=false"}),
              [](Worker& worker) {
                worker.run_step({});
                const program::Program& program = worker.programs().step;
                std::vector<float> first(36);
                int32_t label = 0;
                std::byte* destinations[] = {reinterpret_cast<std::byte*>(first.data()),
                                             reinterpret_cast<std::byte*>(&label)};
                // What was loaded last is still there.
                const auto& division = worker.compiled().division();
                const int last = division.micro_batches_of(0) - 1;
                worker.train_data().read(division.parts_of(0).back().first_sample, destinations);
                const uint16_t* staged = nullptr;
                for (const auto& instruction : program.instructions)
                  if (instruction.kind == program::InstructionKind::load && instruction.micro_batch == last)
                    for (const auto& operand : instruction.operands)
                      if (operand.role == program::Role::batch && operand.index == 0) {
                        EXPECT_EQ(operand.dtype, DType::bfloat16);
                        EXPECT_EQ(operand.range.size_bytes, division.micro_batch * 36 * 2);
                        staged =
                            reinterpret_cast<const uint16_t*>(worker.memory().at(program, operand.range));
                      }
                ASSERT_NE(staged, nullptr);
                for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(staged[i], bfloat16(first[i]).bits) << i;
              });
}

TEST(LossScale, DividesOutOfEverythingExactly) {
  // In float32, where nothing overflows or becomes subnormal, a power of two changes no bit of update or
  // norm.
  for (const char* rule : {"optimizer.sgd={momentum: 0.9}", "optimizer.adamw={}"}) {
    std::vector<uint64_t> hashes;
    std::vector<double> norms;
    for (const double scale : {1.0, 1024.0, 0x1p-10}) {
      with_worker(precision_config(kPrecisionLenet, {rule}), [&](Worker& worker) {
        for (uint64_t step = 0; step < 3; ++step) {
          run::StepInputs inputs{.iteration = step};
          inputs.constants = {.kernels = {.step = step, .seed = 1, .loss_scale = scale},
                              .update = {.learning_rate = 0.01, .beta1_power = 0.5, .beta2_power = 0.5}};
          worker.run_step(inputs);
        }
        hashes.push_back(state_hash_of(worker, *comm::make_solo_communicator()));
        norms.push_back(worker.verdict().gradient_norm);
      });
    }
    EXPECT_EQ(hashes[1], hashes[0]) << rule;
    EXPECT_EQ(hashes[2], hashes[0]) << rule;
    EXPECT_EQ(norms[1], norms[0]) << rule;
    EXPECT_EQ(norms[2], norms[0]) << rule;
  }
}

// The first steps' gradients overflow at a scale of 2^30.
const std::vector<std::string> kOverflowing{
    "precision.compute=FLOAT16", "precision.loss_scaling={initial_scale: 1073741824 maximum: 1073741824}",
    "precision.loss_scaling.growth_interval=3", "trainer.steps=20"};

struct ScaledRun {
  std::vector<double> losses, scales;
  std::string skipped;  ///< 'x' for each step that was
  uint64_t state_hash = 0;
  TrainingOutcome outcome;
  std::string error;
  ExitCode code = ExitCode::done;
};

/// Rank 0's view, after checking that all ranks have the same.
ScaledRun train_scaled(const config::RunConfig& config, int ranks, const std::string& directory = {},
                       int64_t stop_after = 0) {
  std::vector<ScaledRun> runs(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](int rank, comm::Communicator& world) {
    auto& run = runs[static_cast<size_t>(rank)];
    Worker worker(config, {.rank = rank, .world_size = ranks, .asynchronous = {}});
    worker.connect(world);
    TrainerEvents events;
    events.on_step = [&](const StepRecord& record) {
      run.losses.push_back(record.loss);
      run.scales.push_back(record.loss_scale.value_or(0));
      run.skipped += record.skipped ? 'x' : '.';
    };
    Trainer trainer(worker, world, events,
                    {.output_directory = directory, .stop_requested = {}, .stop_after = stop_after});
    try {
      trainer.prepare();
      run.outcome = trainer.run();
    } catch (const comm::CollectiveError& error) {
      run.error = error.what();
      run.code = error.code();
    }
    run.state_hash = state_hash_of(worker, world);
  });
  for (const auto& run : runs) {
    EXPECT_EQ(run.state_hash, runs[0].state_hash);
    EXPECT_EQ(run.scales, runs[0].scales);
  }
  return runs[0];
}

TEST(LossScale, OverflowIsSkippedSilentlyHalvesTheScaleAndGrowsBack) {
  testing::internal::CaptureStderr();
  const ScaledRun run = train_scaled(precision_config(kPrecisionMlp, kOverflowing), 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_EQ(run.error, "");
  ASSERT_EQ(run.scales.size(), 20u);
  EXPECT_EQ(run.scales[0], 0x1p30);
  ASSERT_EQ(run.skipped.substr(0, 3), "xxx");
  EXPECT_NE(run.skipped.find("..."), std::string::npos);
  double scale = 0x1p30;
  int64_t good = 0, skipped = 0;
  for (size_t i = 0; i < run.scales.size(); ++i) {
    EXPECT_EQ(run.scales[i], scale) << i;
    EXPECT_TRUE(std::isfinite(run.losses[i])) << i;
    const bool bad = run.skipped[i] == 'x';
    skipped += bad ? 1 : 0;
    good = bad ? 0 : good + 1;
    scale = bad ? scale / 2 : good == 3 ? scale * 2 : scale;
    if (good == 3) good = 0;
  }
  EXPECT_EQ(run.outcome.skipped_steps, skipped);
  EXPECT_EQ(run.outcome.loss_scale, scale);
}

TEST(LossScale, OverflowHasTheSameBitsOnAnyNumberOfWorkers) {
  for (const char* model : {kPrecisionMlp, kPrecisionLenet, kGpt}) {
    const ScaledRun one = train_scaled(precision_config(model, kOverflowing), 1);
    ASSERT_NE(one.skipped.find('x'), std::string::npos);
    for (const int ranks : {2, 3, 4}) {
      const ScaledRun run = train_scaled(precision_config(model, kOverflowing), ranks);
      EXPECT_EQ(run.state_hash, one.state_hash) << ranks << " workers";
      EXPECT_EQ(run.scales, one.scales) << ranks << " workers";
      EXPECT_EQ(run.losses, one.losses) << ranks << " workers";
    }
  }
}

TEST(LossScale, SkippedStepsChangeNothing) {
  // One step of a scale that overflows, against none: nothing but the scale remembers it.
  auto overrides = kOverflowing;
  overrides.back() = "trainer.steps=1";
  const ScaledRun run = train_scaled(precision_config(kPrecisionLenet, overrides), 1);
  ASSERT_EQ(run.skipped, "x");
  with_worker(precision_config(kPrecisionLenet, overrides), [&](Worker& worker) {
    EXPECT_EQ(state_hash_of(worker, *comm::make_solo_communicator()), run.state_hash);
  });
}

TEST(LossScale, IsGoneOnWithWhereARunWasStopped) {
  auto overrides = kOverflowing;
  overrides.push_back("checkpoint.resume_automatic=true");
  const config::RunConfig config = precision_config(kPrecisionMlp, overrides);
  const ScaledRun whole = train_scaled(config, 1);
  for (const int64_t stop : {2, 7, 17}) {
    const test::TemporaryDirectory folder;
    const ScaledRun first = train_scaled(config, 2, folder / "run", stop);
    EXPECT_EQ(first.outcome.steps, stop);
    const ScaledRun second = train_scaled(config, 3, folder / "run");
    EXPECT_EQ(second.outcome.first_step, stop);
    EXPECT_EQ(second.state_hash, whole.state_hash) << "stopped after " << stop;
    EXPECT_EQ(second.outcome.loss_scale, whole.outcome.loss_scale);
    EXPECT_EQ(second.outcome.skipped_steps, whole.outcome.skipped_steps);
    auto scales = first.scales;
    scales.insert(scales.end(), second.scales.begin(), second.scales.end());
    EXPECT_EQ(scales, whole.scales);
  }
}

TEST(LossScale, ARunThatGoesOnFromFloat32BeginsWithTheFirstScale) {
  const test::TemporaryDirectory folder;
  const std::vector<std::string> plain{"checkpoint.resume_automatic=true", "trainer.steps=6"};
  run_ranks(1, [&](int, comm::Communicator& world) {
    Worker worker(precision_config(kPrecisionMlp, plain), {.rank = 0, .world_size = 1, .asynchronous = {}});
    worker.connect(world);
    Trainer trainer(worker, world, {},
                    {.output_directory = folder / "run", .stop_requested = {}, .stop_after = 3});
    trainer.prepare();
    trainer.run();
  });
  auto scaled = plain;
  scaled.insert(scaled.end(), {"precision.compute=FLOAT16", "checkpoint.allow_config_change=true"});
  const ScaledRun run = train_scaled(precision_config(kPrecisionMlp, scaled), 1, folder / "run");
  EXPECT_EQ(run.error, "");
  EXPECT_EQ(run.scales, (std::vector<double>{65536, 65536, 65536}));
}

TEST(LossScale, OverflowsAreNoSignOfTroubleInARunThatGoesOnInAnotherType) {
  const test::TemporaryDirectory folder;
  auto overrides = kOverflowing;
  overrides.push_back("checkpoint.resume_automatic=true");
  const ScaledRun first = train_scaled(precision_config(kPrecisionMlp, overrides), 1, folder / "run", 6);
  ASSERT_GE(first.outcome.skipped_steps, 3);
  for (const char* compute : {"BFLOAT16", "FLOAT32"}) {
    const ScaledRun second = train_scaled(
        precision_config(
            kPrecisionMlp,
            {std::string("precision.compute=") + compute, "trainer.steps=20",
             "checkpoint.resume_automatic=true", "checkpoint.allow_config_change=true",
             "optimizer.learning_rate=1e30", "trainer.clip_norm=0", "optimizer.schedule={}",
             "trainer.nonfinite=SKIP", "trainer.nonfinite_limit=2", "trainer.eval_every_steps=0"}),
        1, folder / "run");
    EXPECT_THAT(second.error, Mentions("step 2 ... trainer.nonfinite_limit ... 2")) << compute;
  }
}

/// Gradients overflow at the lowest scale there is.
std::vector<std::string> at_the_floor(const std::string& policy) {
  return {"precision.compute=FLOAT16",
          "precision.loss_scaling={initial_scale: 1073741824 minimum: 536870912 maximum: 1073741824}",
          "trainer.nonfinite=" + policy, "trainer.nonfinite_limit=3", "trainer.steps=20"};
}

TEST(LossScale, AtItsMinimumThePolicySaysWhatHappens) {
  const ScaledRun located = train_scaled(precision_config(kPrecisionMlp, at_the_floor("LOCATE")), 2);
  EXPECT_EQ(located.skipped, "x");
  EXPECT_EQ(located.code, ExitCode::internal);
  EXPECT_THAT(located.error,
              AllOf(HasSubstr("step 2: loss "), HasSubstr("536870912"),
                    Mentions("first: ... backward of layer"), HasSubstr("made infinity"),
                    HasSubstr("precision.loss_scaling.minimum: lower that"), Not(HasSubstr("clip_norm"))));
  const ScaledRun stopped = train_scaled(precision_config(kPrecisionMlp, at_the_floor("STOP")), 2);
  EXPECT_EQ(stopped.code, ExitCode::internal);
  EXPECT_THAT(stopped.error, AllOf(HasSubstr("536870912"), Not(HasSubstr("first:"))));
  const ScaledRun skipping = train_scaled(precision_config(kPrecisionMlp, at_the_floor("SKIP")), 2);
  EXPECT_EQ(skipping.skipped, "xxx");  // one that lowered the scale, two that counted, and the third ended it
  EXPECT_EQ(skipping.code, ExitCode::internal);
  EXPECT_THAT(skipping.error, AllOf(Mentions("step 3 ... trainer.nonfinite_limit ... 3"),
                                    HasSubstr("precision.loss_scaling.minimum: lower that")));
}

TEST(LossScale, ALossThatIsNotFiniteIsNoMatterOfTheScale) {
  const ScaledRun run = train_scaled(
      precision_config(kPrecisionMlp, {"precision.compute=FLOAT16", "optimizer.learning_rate=1e30",
                                       "trainer.clip_norm=0", "optimizer.schedule={}"}),
      2);
  EXPECT_EQ(run.code, ExitCode::internal);
  EXPECT_THAT(run.error, AllOf(Mentions("first: ... forward of layer"), HasSubstr("65536"),
                               HasSubstr("Lower optimizer.learning_rate")));
}

}  // namespace
}  // namespace lockstep::train
