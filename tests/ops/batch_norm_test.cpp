#include <gtest/gtest.h>

#include <cmath>

#include "ops/op_cases.h"
#include "ops/op_expect.h"

namespace lockstep::testing {
namespace {

std::vector<Array> batch_norm_reference(const BatchNorm& op, bool training, const Array& x,
                                        const std::vector<Array>& parameters) {
  const int64_t channels = x.shape[-1], rows = x.shape.count() / channels;
  Array y = x;
  for (int64_t c = 0; c < channels; ++c) {
    double mean = 0, variance = 0;
    for (int64_t row = 0; row < rows; ++row) mean += x.values[row * channels + c] / static_cast<double>(rows);
    for (int64_t row = 0; row < rows; ++row)
      variance += std::pow(x.values[row * channels + c] - mean, 2) / static_cast<double>(rows);
    if (!training) {
      mean = parameters[2].values[c];
      variance = parameters[3].values[c];
    }
    for (int64_t row = 0; row < rows; ++row)
      y.values[row * channels + c] = (x.values[row * channels + c] - mean) /
                                         std::sqrt(variance + static_cast<double>(op.epsilon)) *
                                         parameters[0].values[c] +
                                     parameters[1].values[c];
  }
  return {y};
}

OpCase make_batch_norm(std::string name, BatchNorm op, Shape input, int64_t batch, bool training = true) {
  return {.name = std::move(name),
          .op = op,
          .inputs = {{std::move(input)}},
          .batch = batch,
          .reference =
              [op, training](const auto& inputs, const auto& parameters) {
                return batch_norm_reference(op, training, inputs[0], parameters);
              },
          .options = {.training = training}};
}

}  // namespace

template <>
std::vector<OpCase> cases_of<BatchNorm>() {
  std::vector<OpCase> cases{make_batch_norm("one_channel", {}, {1}, 3),
                            make_batch_norm("flat", {.epsilon = 1e-3f}, {7}, 11),
                            make_batch_norm("image", {}, {3, 5, 6}, 2),
                            make_batch_norm("wide", {}, {131}, 37),
                            make_batch_norm("several_blocks_of_rows", {}, {16, 16, 67}, 2),
                            make_batch_norm("evaluation", {}, {3, 3, 5}, 2, false),
                            make_batch_norm("evaluation_of_one_sample", {}, {5}, 1, false)};
  cases.push_back(make_batch_norm("two_threads", {}, {9, 9, 19}, 16));
  cases.back().options.intra_op_threads = 2;
  return cases;
}

namespace {

constexpr int kWeight = 0, kBias = 1, kRunningMean = 2, kRunningVar = 3;

TEST(BatchNorm, NormalizesByTheBiasedVarianceAndReportsTheUnbiasedOne) {
  // Channel 0: 1, 3, 5, 7: mean 4, biased variance 5, unbiased 20/3. Channel 1: ±2: mean 0, biased 4,
  // unbiased 16/3.
  OpHarness harness(BatchNorm{.epsilon = 4}, {{Shape{2}}}, {.batch = 4});
  fill(harness.inputs[0], {1, -2, 3, 2, 5, -2, 7, 2});
  fill(harness.parameters[kWeight], {3, 1});
  fill(harness.parameters[kBias], {10, 0});
  fill(harness.parameters[kRunningMean], 100);
  fill(harness.parameters[kRunningVar], 100);
  harness.forward();
  const double b = 2 / std::sqrt(8.0);
  expect_near(values_of(harness.outputs[0]), {7, -b, 9, b, 11, -b, 13, b}, 1e-6, "output");
  EXPECT_EQ(values_of(harness.parameters[kRunningMean]), (std::vector<double>{100, 100}));

  fill(harness.output_gradients[0], {1, 0, 0, 0, 0, 0, 0, 1});
  harness.backward();
  expect_near(values_of(harness.parameter_gradients[kWeight]), {-1, b}, 1e-6, "gradient of weight");
  expect_near(values_of(harness.parameter_gradients[kBias]), {1, 1}, 1e-6, "gradient of bias");
  expect_near(values_of(harness.parameter_gradients[kRunningMean]), {4, 0}, 1e-6, "mean");
  expect_near(values_of(harness.parameter_gradients[kRunningVar]), {20.0 / 3, 16.0 / 3}, 1e-6, "variance");
  harness.backward(true);
  expect_near(values_of(harness.parameter_gradients[kRunningMean]), {8, 0}, 1e-6, "mean, twice");
  expect_near(values_of(harness.parameter_gradients[kRunningVar]), {40.0 / 3, 32.0 / 3}, 1e-6,
              "variance, twice");
}

TEST(BatchNorm, AgreesWithPyTorch) {
  expect_matches_golden(BatchNorm{}, read_golden("batch_norm", "image"));
  expect_matches_golden(BatchNorm{.epsilon = 1e-3f}, read_golden("batch_norm", "flat"));
  expect_matches_golden(BatchNorm{}, read_golden("batch_norm", "evaluation"), {.training = false});
}

TEST(BatchNorm, KeepsItsDigitsWhereTheMeanIsLarge) {
  // x² near 1e8 has no digits left for a variance of 1/4 in float32.
  OpHarness harness(BatchNorm{}, {{Shape{1}}}, {.batch = 100'000});
  for (int64_t i = 0; i < 100'000; ++i) harness.inputs[0].as<float>()[i] = i % 2 == 0 ? 10'000.0f : 10'001.0f;
  fill(harness.parameters[kWeight], 1);
  fill(harness.parameters[kBias], 0);
  fill(harness.output_gradients[0], 0);
  harness.forward();
  harness.backward();
  expect_near(values_of(harness.parameter_gradients[kRunningMean]), {10'000.5}, 1e-7, "mean");
  expect_near(values_of(harness.parameter_gradients[kRunningVar]), {0.25 * 100'000 / 99'999}, 1e-5,
              "variance");
}

TEST(BatchNorm, BitsDoNotDependOnTheNumberOfThreads) {
  const OpCase one = make_batch_norm("", {}, {31, 29, 11}, 8);
  OpCase three = one;
  three.options.intra_op_threads = 3;
  auto single = make_harness(one), several = make_harness(three);
  for (OpHarness* harness : {single.get(), several.get()}) {
    harness->forward();
    harness->backward();
  }
  EXPECT_EQ(values_of(single->outputs[0]), values_of(several->outputs[0]));
  EXPECT_EQ(values_of(single->input_gradients[0]), values_of(several->input_gradients[0]));
  for (size_t i = 0; i < 4; ++i)
    EXPECT_EQ(values_of(single->parameter_gradients[i]), values_of(several->parameter_gradients[i])) << i;
}

TEST(BatchNorm, StatisticsAreNotWeights) {
  const ops::OpSignature signature =
      ops::infer(BatchNorm{.momentum = 0.25f}, std::vector<TensorSpec>{{Shape{4, 4, 6}}});
  ASSERT_EQ(signature.parameters.size(), 4u);
  EXPECT_EQ(signature.parameters[kWeight].role, ops::ParameterRole::weight);
  EXPECT_EQ(signature.parameters[kBias].role, ops::ParameterRole::weight);
  for (const int i : {kRunningMean, kRunningVar}) {
    EXPECT_EQ(signature.parameters[i].role, ops::ParameterRole::statistic);
    EXPECT_EQ(signature.parameters[i].momentum, 0.25f);
    EXPECT_EQ(signature.parameters[i].shape, (Shape{6}));
  }
  EXPECT_EQ(signature.parameters[kRunningVar].init.kind, ops::Initializer::Kind::one);
  EXPECT_EQ(signature.backward, ops::BackwardForm::joint);
  for (const ops::AuxiliarySpec& auxiliary : signature.auxiliary)
    EXPECT_FALSE(auxiliary.per_sample) << auxiliary.name;
}

TEST(BatchNorm, RefusesASingleValuePerChannelInTrainingOnly) {
  const std::vector<TensorSpec> flat{{Shape{8}}}, image{{Shape{2, 2, 8}}};
  expect_config_error([&] { ops::make_kernel(device::DeviceKind::cpu, BatchNorm{}, flat, {.batch = 1}); },
                      "batch_norm: a micro-batch of 1 sample of shape [8] has a single value per channel");
  EXPECT_NO_THROW(ops::make_kernel(device::DeviceKind::cpu, BatchNorm{}, image, {.batch = 1}));
  EXPECT_NO_THROW(
      ops::make_kernel(device::DeviceKind::cpu, BatchNorm{}, flat, {.batch = 1, .training = false}));
}

TEST(BatchNorm, RefusesOptionsOutOfRange) {
  const std::vector<TensorSpec> input{{Shape{8}}};
  expect_config_error([&] { ops::infer(BatchNorm{.epsilon = 0}, input); }, "epsilon must be positive, is 0");
  expect_config_error([&] { ops::infer(BatchNorm{.momentum = 1.5f}, input); },
                      "momentum must be in (0, 1], is 1.5");
  expect_config_error([&] { ops::infer(BatchNorm{.momentum = NAN}, input); },
                      "momentum must be in (0, 1], is nan");
}

}  // namespace
}  // namespace lockstep::testing
