#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/error.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

TEST(RmsNorm, AgreesWithValuesWorkedOutByHand) {
  // Mean square 3.5, and with epsilon 0.5 an inverse root of 1/2.
  OpHarness harness(RmsNorm{.epsilon = 0.5f}, {{Shape{2}}}, {.batch = 1});
  fill(harness.inputs[0], {std::sqrt(3.0), 2});
  fill(harness.parameters[0], {2, 4});
  fill(harness.output_gradients[0], {0, 1});
  harness.forward();
  harness.backward();
  expect_near(values_of(harness.outputs[0]), {std::sqrt(3.0), 4}, 1e-6, "output");
  expect_near(values_of(harness.auxiliary[0]), {0.5}, 1e-7, "inverse root");
  // n = (sqrt(3) / 2, 1), g = (0, 4), mean(g n) = 2.
  expect_near(values_of(harness.input_gradients[0]), {-std::sqrt(3.0) / 2, 1}, 1e-6, "gradient");
  expect_near(values_of(harness.parameter_gradients[0]), {0, 1}, 1e-6, "gradient of the weight");
}

TEST(RmsNorm, ThreadsDoNotChangeTheBits) {
  OpCase c{.name = "", .op = RmsNorm{}, .inputs = {{{101, 37}}}, .batch = 3};
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

TEST(RmsNorm, KeepsOneNumberOfARowAndHasOneParameter) {
  const ops::OpSignature signature = ops::infer(RmsNorm{}, std::vector<TensorSpec>{{{5, 3}}});
  ASSERT_EQ(signature.parameters.size(), 1u);
  EXPECT_TRUE(signature.parameters[0].is_norm_or_bias);
  ASSERT_EQ(signature.auxiliary.size(), 1u);
  EXPECT_EQ(signature.auxiliary[0].shape, Shape{5});
}

TEST(RmsNorm, RefusesScalarsAndBadEpsilons) {
  EXPECT_THROW(ops::infer(RmsNorm{}, std::vector<TensorSpec>{{Shape{}}}), ConfigError);
  EXPECT_THROW(ops::infer(RmsNorm{.epsilon = 0}, std::vector<TensorSpec>{{Shape{3}}}), ConfigError);
}

TEST(RmsNorm, MatchesPyTorch) {
  expect_matches_golden(RmsNorm{}, read_golden("rms_norm", "rows"));
  expect_matches_golden(RmsNorm{.epsilon = 1e-2f}, read_golden("rms_norm", "large_epsilon"));
}

}  // namespace

template <>
std::vector<OpCase> cases_of<RmsNorm>() {
  const auto make = [](std::string name, Shape shape, int64_t batch, int threads) {
    OpCase c{.name = std::move(name), .op = RmsNorm{.epsilon = 1e-2f}, .inputs = {{shape}}};
    c.batch = batch;
    c.options.intra_op_threads = threads;
    c.reference = [](const std::vector<Array>& inputs, const std::vector<Array>& parameters) {
      Array y = inputs[0];
      const auto channels = static_cast<size_t>(y.shape[-1]);
      for (size_t row = 0; row < y.values.size(); row += channels) {
        double square = 0;
        for (size_t i = 0; i < channels; ++i)
          square += y.values[row + i] * y.values[row + i] / static_cast<double>(channels);
        for (size_t i = 0; i < channels; ++i)
          y.values[row + i] *= parameters[0].values[i] / std::sqrt(square + static_cast<double>(1e-2f));
      }
      return std::vector<Array>{y};
    };
    return c;
  };
  return {make("one", {1}, 1, 1), make("odd", {3, 5}, 3, 1), make("whole_vectors", {2, 64}, 2, 1),
          make("blocks", {41, 33}, 2, 2)};
}

}  // namespace lockstep::testing
