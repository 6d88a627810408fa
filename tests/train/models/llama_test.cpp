// The preset llama against transformers' LlamaForCausalLM, from the same weights on the same samples.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "config/run_config.h"
#include "data/own_samples.h"
#include "ops/op_testing.h"
#include "train/loop/trainer.h"
#include "train/thread_ranks.h"
#include "train/worker/model_state.h"

namespace lockstep::train {
namespace {

using testing::Array;
using testing::Golden;

std::vector<int32_t> integers_of(const Array& array) { return {array.values.begin(), array.values.end()}; }

config::RunConfig config_of(const Golden& golden, int steps, const std::string& model,
                            const std::string& optimizer) {
  const Samples samples = Samples::in_memory(
      {{"tokens", {8}, integers_of(golden.at("tokens"))}, {"label", {8}, integers_of(golden.at("labels"))}});
  return config::parse_run_config(
      fmt::format("format_version: 1 model {{ llama {{ vocabulary: 11 context: 8 layers: 2 heads: 4 width: 8 "
                  "hidden: 12 {} }} }} trainer {{ global_batch: 4 steps: {} seed: 1 }} "
                  "optimizer {{ {} }}",
                  model, steps, optimizer),
      "llama_test", {}, {}, {.samples = {.train = SamplesAccess::dataset_of(samples), .eval = nullptr}});
}

struct Result {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> parameters;  // at the end
};

/// Trains from the golden's weights.
Result train_from(const Golden& golden, const config::RunConfig& config) {
  Result result;
  comm::run_ranks(1, [&](int, comm::Communicator& world) {
    Worker worker(config, {.rank = 0, .world_size = 1, .device = device::DeviceKind::cpu});
    worker.connect(world);
    const auto& parameters = worker.compiled().graph().parameters;
    TrainerEvents events;
    events.on_step = [&](const StepRecord& record) { result.losses.push_back(record.loss); };
    Trainer trainer(worker, world, events, {.output_directory = "", .stop_requested = {}});
    trainer.prepare();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const Array& weight = golden.at(parameters[p].name);
      ASSERT_EQ(weight.shape, parameters[p].spec.shape) << parameters[p].name;
      replace_parameter(worker, world, static_cast<int>(p),
                        std::vector<float>(weight.values.begin(), weight.values.end()));
    }
    trainer.run();
    for (size_t p = 0; p < parameters.size(); ++p)
      result.parameters[parameters[p].name] = gather_parameter(worker, world, static_cast<int>(p));
  });
  return result;
}

void expect_as_transformers(const std::string& name, const std::string& model, const std::string& optimizer) {
  const Golden golden = testing::read_golden("llama", name);
  const Result result = train_from(golden, config_of(golden, 20, model, optimizer));
  const auto& losses = golden.at("losses").values;
  ASSERT_EQ(result.losses.size(), losses.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(result.losses[i], losses[i], 1e-5) << "step " << i;
  EXPECT_LT(losses.back(), losses.front() - 0.1);
  const Result one_step = train_from(golden, config_of(golden, 1, model, optimizer));
  for (const auto& [parameter, values] : one_step.parameters) {
    const auto& expected = golden.at("after one step " + parameter).values;
    ASSERT_EQ(values.size(), expected.size()) << parameter;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], expected[i], 1e-5) << parameter << "[" << i << "]";
  }
}

TEST(Llama, WithGroupedKeysTrainsAsInTransformers) {
  expect_as_transformers("grouped", "key_value_heads: 2", "learning_rate: 0.05 sgd { momentum: 0.9 }");
}

TEST(Llama, WithATiedHeadTrainsAsInTransformers) {
  expect_as_transformers("tied", "tied_head: true",
                         "learning_rate: 0.01 adamw { beta2: 0.99 epsilon: 1e-3 } weight_decay: 0");
}

}  // namespace
}  // namespace lockstep::train
