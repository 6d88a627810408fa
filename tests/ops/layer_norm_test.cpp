#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/error.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

TEST(LayerNorm, AgreesWithValuesWorkedOutByHand) {
  // Mean 2, variance 1, and with epsilon 3 an inverse deviation of 1/2.
  OpHarness harness(LayerNorm{.epsilon = 3}, {{Shape{2}}}, {.batch = 1});
  fill(harness.inputs[0], {1, 3});
  fill(harness.parameters[0], {2, 4});
  fill(harness.parameters[1], {10, 20});
  fill(harness.output_gradients[0], {1, 0});
  harness.forward();
  harness.backward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{9, 22}));
  EXPECT_EQ(values_of(harness.auxiliary[0]), (std::vector<double>{2}));
  EXPECT_EQ(values_of(harness.auxiliary[1]), (std::vector<double>{0.5}));
  // g = (2, 0), n = (-1/2, 1/2): dx = (g - 1 + n / 2) / 2.
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{0.375, -0.375}));
  EXPECT_EQ(values_of(harness.parameter_gradients[0]), (std::vector<double>{-0.5, 0}));
  EXPECT_EQ(values_of(harness.parameter_gradients[1]), (std::vector<double>{1, 0}));
}

TEST(LayerNorm, OfAConstantRowIsItsBias) {
  OpHarness harness(LayerNorm{}, {{Shape{5}}}, {.batch = 1});
  fill(harness.inputs[0], 3.0);
  fill(harness.parameters[0], 2.0);
  fill(harness.parameters[1], {1, 2, 3, 4, 5});
  harness.forward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{1, 2, 3, 4, 5}));
}

TEST(LayerNorm, KeepsDeviationsOfALargeMean) {
  // The mean of the squares less the square of the mean would lose these deviations altogether.
  OpHarness harness(LayerNorm{.epsilon = 1e-12f}, {{Shape{4}}}, {.batch = 1});
  fill(harness.inputs[0], {9999, 10001, 9999, 10001});
  fill(harness.parameters[0], 1.0);
  fill(harness.parameters[1], 0.0);
  harness.forward();
  expect_near(values_of(harness.outputs[0]), {-1, 1, -1, 1}, 1e-6, "output");
}

TEST(LayerNorm, LetsNotANumberThroughInItsRowOnly) {
  OpHarness harness(LayerNorm{}, {{{2, 3}}}, {.batch = 1});
  fill(harness.inputs[0], {1, std::nan(""), 3, 4, 5, 7});
  fill(harness.parameters[0], 1.0);
  fill(harness.parameters[1], 0.0);
  harness.forward();
  const auto y = values_of(harness.outputs[0]);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(y[static_cast<size_t>(i)]));
  for (int i = 3; i < 6; ++i) EXPECT_TRUE(std::isfinite(y[static_cast<size_t>(i)]));
}

TEST(LayerNorm, ThreadsDoNotChangeTheBits) {
  OpCase c{.name = "", .op = LayerNorm{}, .inputs = {{{101, 37}}}, .batch = 3};
  std::vector<std::vector<double>> gradients;
  for (const int threads : {1, 2, 5}) {
    c.options.intra_op_threads = threads;
    auto harness = make_harness(c);
    harness->forward();
    harness->backward();
    gradients.push_back(values_of(harness->parameter_gradients[0]));
    EXPECT_EQ(gradients.back(), gradients.front());
  }
}

TEST(LayerNorm, WithoutBiasHasOneParameter) {
  const ops::OpSignature signature = ops::infer(LayerNorm{.bias = false}, std::vector<TensorSpec>{{{5, 3}}});
  ASSERT_EQ(signature.parameters.size(), 1u);
  EXPECT_EQ(signature.parameters[0].shape, Shape{3});
  EXPECT_TRUE(signature.parameters[0].is_norm_or_bias);
  EXPECT_EQ(signature.auxiliary[0].shape, Shape{5});
}

TEST(LayerNorm, RefusesScalarsAndBadEpsilons) {
  EXPECT_THROW(ops::infer(LayerNorm{}, std::vector<TensorSpec>{{Shape{}}}), ConfigError);
  EXPECT_THROW(ops::infer(LayerNorm{.epsilon = 0}, std::vector<TensorSpec>{{Shape{3}}}), ConfigError);
}

TEST(LayerNorm, MatchesPyTorch) {
  expect_matches_golden(LayerNorm{}, read_golden("layer_norm", "bias"));
  expect_matches_golden(LayerNorm{.bias = false}, read_golden("layer_norm", "no_bias"));
}

}  // namespace

template <>
std::vector<OpCase> cases_of<LayerNorm>() {
  const auto make = [](std::string name, Shape shape, int64_t batch, bool bias, int threads) {
    OpCase c{.name = std::move(name), .op = LayerNorm{.epsilon = 1e-2f, .bias = bias}, .inputs = {{shape}}};
    c.batch = batch;
    c.options.intra_op_threads = threads;
    c.reference = [](const std::vector<Array>& inputs, const std::vector<Array>& parameters) {
      Array y = inputs[0];
      const auto channels = static_cast<size_t>(y.shape[-1]);
      for (size_t row = 0; row < y.values.size(); row += channels) {
        double mean = 0, variance = 0;
        for (size_t i = 0; i < channels; ++i) mean += y.values[row + i] / static_cast<double>(channels);
        for (size_t i = 0; i < channels; ++i)
          variance += std::pow(y.values[row + i] - mean, 2) / static_cast<double>(channels);
        for (size_t i = 0; i < channels; ++i)
          y.values[row + i] = (y.values[row + i] - mean) / std::sqrt(variance + static_cast<double>(1e-2f)) *
                                  parameters[0].values[i] +
                              (parameters.size() > 1 ? parameters[1].values[i] : 0);
      }
      return std::vector<Array>{y};
    };
    return c;
  };
  return {make("one", {1}, 1, true, 1), make("odd", {3, 5}, 3, true, 1),
          make("no_bias", {7, 19}, 2, false, 1), make("whole_vectors", {2, 64}, 2, true, 1),
          make("blocks", {41, 33}, 2, true, 2)};
}

}  // namespace lockstep::testing
