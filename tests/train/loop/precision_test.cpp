// Training with two-byte storage, from config to parameters.

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "base/half.h"
#include "tensor/convert.h"
#include "train/loop/precision_configs.h"
#include "train/thread_ranks.h"
#include "train/worker/compile_options.h"
#include "train/worker/model_state.h"
#include "train/worker/worker_memory.h"

namespace lockstep::train {
namespace {

class NarrowTraining : public testing::TestWithParam<std::tuple<const char*, const char*>> {
 protected:
  config::RunConfig config(std::vector<std::string> overrides = {}) const {
    overrides.push_back(std::string("precision.compute=") + std::get<1>(GetParam()));
    return precision_config(std::get<0>(GetParam()), overrides);
  }
};
INSTANTIATE_TEST_SUITE_P(All, NarrowTraining,
                         testing::Combine(testing::Values(kPrecisionMlp, kPrecisionLenet, kPrecisionGpt),
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
  EXPECT_EQ(train_on_threads(precision_config(kPrecisionGpt, as_it_lands), 2),
            train_on_threads(precision_config(kPrecisionGpt, plain), 2));
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

TEST(Precision, AStepReadsTheParametersRounded) {
  for (const char* compute : {"BFLOAT16", "FLOAT16"})
    with_worker(
        precision_config(kPrecisionGpt, {std::string("precision.compute=") + compute}), [](Worker& worker) {
          worker.run_step({});
          worker.run_step({.iteration = 1});
          worker.run_step({.iteration = 2,
                           .suppress_updates = true});  // so that nothing has changed since a step read it
          const program::Program& program = worker.programs().step;
          const DType dtype = worker.compiled().graph().compute;
          int compared = 0;
          for (size_t p = 0; p < program.parameters.size(); ++p) {
            const auto& place = program.parameters[p];
            ASSERT_GE(place.narrow_buffer, 0) << place.name;
            const int64_t count = place.size_bytes / 4;
            std::vector<uint16_t> expected(static_cast<size_t>(count));
            tensor::convert(expected.data(), dtype, worker.parameter_data(static_cast<int>(p)),
                            DType::float32, count);
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
      config::RunConfig config = precision_config(kPrecisionGpt, overrides);
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
  with_worker(precision_config(kPrecisionGpt, {"precision.compute=BFLOAT16"}), [](Worker& worker) {
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

}  // namespace
}  // namespace lockstep::train
