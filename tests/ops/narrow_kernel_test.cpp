// Kernels that store their tensors in bfloat16 and float16.

#include "ops/cpu/narrow_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/half.h"
#include "lockstep/error.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

std::vector<OpCase> narrow_cases() {
  std::vector<OpCase> cases;
  for (const OpCasesRow& row : op_cases())
    for (OpCase& c : row.cases())
      for (const DType dtype : {DType::bfloat16, DType::float16}) {
        OpCase narrow = c;
        narrow.name = std::string(row.op) + "_" + c.name + "_" + std::string(name_of(dtype));
        narrow.options.compute = dtype;
        cases.push_back(std::move(narrow));
      }
  return cases;
}

/// The values as `dtype` stores them.
std::vector<double> rounded(std::vector<double> values, DType dtype) {
  for (double& value : values)
    value = dtype == DType::bfloat16 ? static_cast<float>(bfloat16(static_cast<float>(value)))
                                     : static_cast<float>(float16(static_cast<float>(value)));
  return values;
}

class NarrowKernelSuite : public ::testing::TestWithParam<OpCase> {};

/// Widening is exact, and the arithmetic is the float32 kernel's: bit by bit, results are its results,
/// rounded.
TEST_P(NarrowKernelSuite, MakesWhatTheFloat32KernelMakesOfTheSameNumbersRounded) {
  const OpCase& c = GetParam();
  const DType dtype = c.options.compute;
  OpCase wide_case = c;
  wide_case.options.compute = DType::float32;
  auto narrow = make_harness(c);
  auto wide = make_harness(wide_case);
  const auto copy = [](const std::vector<Tensor>& to, const std::vector<Tensor>& from) {
    for (size_t i = 0; i < to.size(); ++i) fill(to[i], values_of(from[i]));
  };
  copy(wide->inputs, narrow->inputs);
  copy(wide->parameters, narrow->parameters);
  copy(wide->output_gradients, narrow->output_gradients);

  narrow->forward();
  wide->forward();
  for (size_t i = 0; i < wide->outputs.size(); ++i) {
    if (c.inputs[0].dtype == DType::float32) {
      EXPECT_EQ(narrow->outputs[i].dtype, dtype);
    }
    EXPECT_EQ(values_of(narrow->outputs[i]), rounded(values_of(wide->outputs[i]), dtype)) << "output " << i;
  }
  for (int m = 0; m <= ops::kCorrect && wide->signature().is_loss; ++m)
    EXPECT_EQ(narrow->metrics[m], wide->metrics[m]) << "metric " << m;
  if (!c.options.training) return;

  for (size_t i = 0; i < wide->auxiliary.size(); ++i)
    EXPECT_EQ(values_of(narrow->auxiliary[i]), values_of(wide->auxiliary[i])) << "auxiliary " << i;
  copy(wide->outputs, narrow->outputs);  // backward reads what was stored
  narrow->backward();
  wide->backward();
  for (size_t i = 0; i < wide->input_gradients.size(); ++i)
    if (wide->input_gradients[i].data != nullptr) {
      EXPECT_EQ(values_of(narrow->input_gradients[i]), rounded(values_of(wide->input_gradients[i]), dtype))
          << "input " << i;
    }
  for (size_t i = 0; i < wide->parameter_gradients.size(); ++i) {
    EXPECT_EQ(narrow->parameter_gradients[i].dtype, DType::float32);
    EXPECT_EQ(values_of(narrow->parameter_gradients[i]), values_of(wide->parameter_gradients[i]))
        << "parameter " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, NarrowKernelSuite, ::testing::ValuesIn(narrow_cases()),
                         [](const auto& info) { return info.param.name; });

TEST(NarrowKernel, WeightsOfProductsAndTablesAreReadNarrowNormalizationsInFloat32) {
  const auto narrow_parameters = [](const Op& op, const TensorSpec& input) {
    std::string names;
    for (const auto& parameter : ops::infer(op, std::vector<TensorSpec>{input}).parameters)
      if (parameter.narrow) names += parameter.name + " ";
    return names;
  };
  EXPECT_EQ(narrow_parameters(Linear{.units = 2}, {Shape{3}}), "weight bias ");
  EXPECT_EQ(narrow_parameters(Conv2d{.channels = 2, .kernel = 1}, {Shape{3, 3, 1}}), "weight bias ");
  EXPECT_EQ(narrow_parameters(Embedding{.vocabulary = 5, .width = 2}, {Shape{3}, DType::int32}), "weight ");
  EXPECT_EQ(narrow_parameters(PositionEmbedding{.positions = 5}, {Shape{3, 2}}), "weight ");
  EXPECT_EQ(narrow_parameters(LayerNorm{}, {Shape{3}}), "");
  EXPECT_EQ(narrow_parameters(BatchNorm{}, {Shape{3, 3, 2}}), "");
}

TEST(NarrowKernel, ComputesAnExampleByHand) {
  OpHarness harness(Linear{.units = 1}, {{Shape{2}}}, {.batch = 1, .compute = DType::bfloat16});
  // 1.01 is stored as 1.0078125; 1.0078125 * 3 + 2 * 0.5 + 0.25 = 4.2734375, which rounds to 4.28125.
  fill(harness.inputs[0], std::vector<double>{1.01, 2});
  fill(harness.parameters[0], std::vector<double>{3, 0.5});
  fill(harness.parameters[1], 0.25);
  harness.forward();
  EXPECT_EQ(values_of(harness.outputs[0]), std::vector<double>{4.28125});
  // Gradients of parameters keep their digits: 1.0078125 * 1.0078125 has 15 of them.
  fill(harness.output_gradients[0], 1.01);
  harness.backward();
  EXPECT_EQ(values_of(harness.parameter_gradients[0]), (std::vector<double>{1.01568603515625, 2.015625}));
  EXPECT_EQ(values_of(harness.input_gradients[0]),
            (std::vector<double>{3.03125, 0.50390625}));  // 3.0234375, a tie
}

TEST(NarrowKernel, AgreesWithPyTorchsNarrowLinear) {
  // A unit in the last place of the largest value: sums are added up in another order.
  expect_matches_golden(Linear{.units = 9}, read_golden("narrow_linear", "bfloat16"),
                        {.compute = DType::bfloat16}, 0x1p-8);
  expect_matches_golden(Linear{.units = 9}, read_golden("narrow_linear", "float16"),
                        {.compute = DType::float16}, 0x1p-11);
}

TEST(NarrowKernel, OverflowOfFloat16IsInfinityAndReachesTheGradientsOfParameters) {
  OpHarness harness(Linear{.units = 1, .bias = false}, {{Shape{1}}}, {.batch = 1, .compute = DType::float16});
  fill(harness.inputs[0], 300);
  fill(harness.parameters[0], 300);
  harness.forward();
  EXPECT_EQ(values_of(harness.outputs[0])[0], std::numeric_limits<double>::infinity());
  fill(harness.output_gradients[0], 1e6);  // infinity in float16
  harness.backward();
  EXPECT_FALSE(std::isfinite(values_of(harness.parameter_gradients[0])[0]));
}

TEST(NarrowKernel, OtherTypesAreRefused) {
  EXPECT_THROW(OpHarness(Relu{}, {{Shape{3}}}, {.batch = 1, .compute = DType::float64}), ConfigError);
}

}  // namespace
}  // namespace lockstep::testing
