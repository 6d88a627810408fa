#include <gtest/gtest.h>

#include <utility>

#include "lockstep/error.h"
#include "ops/op_cases.h"
#include "ops/op_expect.h"

namespace lockstep::testing {
namespace {

std::vector<Array> linear_reference(const std::vector<Array>& inputs, const std::vector<Array>& parameters,
                                    int64_t units) {
  const Array& x = inputs[0];
  const int64_t in = x.shape[-1], rows = x.shape.count() / in;
  std::vector<int64_t> dims = x.shape.dims();
  dims.back() = units;
  Array y{Shape(dims), std::vector<double>(static_cast<size_t>(rows * units))};
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t unit = 0; unit < units; ++unit) {
      double sum = parameters.size() > 1 ? parameters[1].values[unit] : 0;
      for (int64_t k = 0; k < in; ++k) sum += x.values[row * in + k] * parameters[0].values[unit * in + k];
      y.values[row * units + unit] = sum;
    }
  return {y};
}

OpCase make_linear(std::string name, Shape input, int64_t units, int64_t batch, bool bias = true) {
  return {.name = std::move(name),
          .op = Linear{.units = units, .bias = bias},
          .inputs = {{std::move(input)}},
          .batch = batch,
          .reference = [units](const auto& inputs, const auto& parameters) {
            return linear_reference(inputs, parameters, units);
          }};
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Linear>() {
  std::vector<OpCase> cases{
      make_linear("one_by_one", {1}, 1, 1),      make_linear("odd", {3}, 5, 7),
      make_linear("prime", {37}, 17, 13),        make_linear("no_bias", {19}, 33, 4, false),
      make_linear("sequence", {3, 5, 11}, 2, 3), make_linear("wide", {131}, 67, 71)};
  cases.push_back(make_linear("two_threads", {40}, 36, 9));
  cases.back().options.intra_op_threads = 2;
  return cases;
}

namespace {

TEST(Linear, IsXTimesTheTransposedWeightPlusBias) {
  OpHarness harness(Linear{.units = 2}, {{Shape{3}}}, {.batch = 2});
  fill(harness.inputs[0], {1, 2, 3, -1, 0, 4});
  fill(harness.parameters[0], {1, 0, -1, 2, 1, 0.5});
  fill(harness.parameters[1], {10, -10});
  harness.forward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{8, -4.5, 5, -10}));

  fill(harness.output_gradients[0], {1, 2, -1, 3});
  harness.backward();
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{5, 2, 0, 5, 3, 2.5}));
  EXPECT_EQ(values_of(harness.parameter_gradients[0]), (std::vector<double>{2, 2, -1, -1, 4, 18}));
  EXPECT_EQ(values_of(harness.parameter_gradients[1]), (std::vector<double>{0, 5}));
  harness.backward_weight(true);
  EXPECT_EQ(values_of(harness.parameter_gradients[0]), (std::vector<double>{4, 4, -2, -2, 8, 36}));
  EXPECT_EQ(values_of(harness.parameter_gradients[1]), (std::vector<double>{0, 10}));
}

TEST(Linear, AgreesWithPyTorch) {
  expect_matches_golden(Linear{.units = 4}, read_golden("linear", "plain"));
  expect_matches_golden(Linear{.units = 5, .bias = false}, read_golden("linear", "sequence_without_bias"));
}

TEST(Linear, InitializesAsKaimingUniformUnlessADeviationIsGiven) {
  const std::vector<TensorSpec> input{{Shape{7, 16}}};
  const ops::OpSignature uniform = ops::infer(Linear{.units = 3}, input);
  EXPECT_EQ(uniform.outputs[0].shape, (Shape{7, 3}));
  for (const ops::ParameterSpec& parameter : uniform.parameters)
    EXPECT_EQ(parameter.init, (ops::Initializer{ops::Initializer::Kind::uniform, 0.25f})) << parameter.name;
  const ops::OpSignature normal = ops::infer(Linear{.units = 3, .init_std = 0.02f}, input);
  EXPECT_EQ(normal.parameters[0].init, (ops::Initializer{ops::Initializer::Kind::normal, 0.02f}));
  EXPECT_EQ(normal.parameters[1].init, (ops::Initializer{ops::Initializer::Kind::zero, 0.0f}));
  EXPECT_FALSE(normal.parameters[0].is_norm_or_bias);
  EXPECT_TRUE(normal.parameters[1].is_norm_or_bias);
}

TEST(Linear, InitializesAsItsOptionsSay) {
  const auto inits = [](const Linear& op) {
    const auto parameters = ops::infer(op, std::vector<TensorSpec>{{Shape{7, 16}}}).parameters;
    return std::pair(parameters.front().init, parameters.back().init);
  };
  using enum ops::Initializer::Kind;
  const ops::Initializer zeros{zero, 0.0f};
  EXPECT_EQ(inits({.units = 3, .init_range = 0.5f}), std::pair(ops::Initializer(uniform, 0.5f), zeros));
  EXPECT_EQ(inits({.units = 3, .zero_weight = true}), std::pair(zeros, zeros));
  EXPECT_EQ(inits({.units = 3, .init_range = 0.5f, .bias_init_std = 0.25f}),
            std::pair(ops::Initializer(uniform, 0.5f), ops::Initializer(normal, 0.25f)));
}

TEST(Linear, RefusesFirstValuesThatContradictEachOther) {
  const auto refuses = [](const Linear& op, const char* message) {
    expect_config_error([&] { ops::infer(op, std::vector<TensorSpec>{{Shape{3}}}); }, message);
  };
  refuses({.units = 2, .init_std = 1, .init_range = 1}, "keep one of them");
  refuses({.units = 2, .init_range = 1, .zero_weight = true}, "keep one of them");
  refuses({.units = 2, .init_range = -1}, "linear: init_range must not be negative");
  refuses({.units = 2, .bias_init_std = 1}, "bias_init_std needs init_std, init_range or zero_weight");
  refuses({.units = 2, .bias = false, .init_std = 1, .bias_init_std = 1}, "bias_init_std needs a bias");
}

TEST(Linear, RefusesWhatItCannotMultiply) {
  expect_config_error([] { ops::infer(Linear{.units = 0}, std::vector<TensorSpec>{{Shape{3}}}); },
                      "linear: units must be positive, is 0");
  expect_config_error([] { ops::infer(Linear{.units = 2}, std::vector<TensorSpec>{{Shape{}}}); },
                      "linear: input must have at least 1 dimension, has shape []");
  expect_config_error(
      [] {
        ops::infer(Linear{.units = 2}, std::vector<TensorSpec>{{Shape{3}, DType::int32}});
      },
      "linear: input must be float32, is int32 of shape [3]");
  expect_config_error(
      [] {
        ops::infer(Linear{.units = 2}, std::vector<TensorSpec>{{Shape{3}}, {Shape{3}}});
      },
      "linear: takes 1 input, is given 2");
  expect_config_error([] { ops::infer(Linear{.units = 2}, std::vector<TensorSpec>{{Shape{0}}}); },
                      "linear: input of shape [0] is empty");
}

TEST(Linear, CountsAMultiplyAddAsTwo) {
  const ops::OpCost c =
      ops::cost(Linear{.units = 4, .bias = false}, std::vector<TensorSpec>{{Shape{5, 3}}}, 2);
  EXPECT_EQ(c.forward_flops, 2 * 10 * 3 * 4);
  EXPECT_EQ(c.backward_input_flops, 2 * 10 * 3 * 4);
  EXPECT_EQ(c.backward_weight_flops, 2 * 10 * 3 * 4);
  EXPECT_EQ(c.forward_bytes, 4 * (30 + 40 + 12));
}

TEST(Linear, BiasGradientDoesNotDependOnTheNumberOfThreads) {
  const OpCase one = make_linear("", {3}, 5, 9001);
  OpCase two = one;
  two.options.intra_op_threads = 2;
  auto single = make_harness(one), twin = make_harness(two);
  for (OpHarness* harness : {single.get(), twin.get()}) {
    harness->forward();
    harness->backward();
  }
  EXPECT_EQ(values_of(single->parameter_gradients[1]), values_of(twin->parameter_gradients[1]));
}

}  // namespace
}  // namespace lockstep::testing
