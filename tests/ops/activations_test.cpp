#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/error.h"
#include "ops/elementwise.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<OpCase> activation_cases(const Op& op, double (*f)(double)) {
  const Reference reference = [f](const std::vector<Array>& inputs, const std::vector<Array>&) {
    Array y = inputs[0];
    for (double& value : y.values) value = f(value);
    return std::vector<Array>{y};
  };
  const auto spread = [](std::vector<Array>& inputs) {
    for (double& value : inputs[0].values) value = static_cast<float>(value * 6);
  };
  OpCase one{.name = "one", .op = op, .inputs = {{Shape{1}}}, .batch = 1, .reference = reference};
  OpCase scalar{.name = "scalar", .op = op, .inputs = {{Shape{}}}, .batch = 3, .reference = reference};
  OpCase prime{.name = "prime",
               .op = op,
               .inputs = {{{3, 37}}},
               .batch = 5,
               .reference = reference,
               .prepare = spread};
  OpCase pieces{
      .name = "threads", .op = op, .inputs = {{Shape{20011}}}, .reference = reference, .prepare = spread};
  pieces.options.intra_op_threads = 2;
  return {one, scalar, prime, pieces};
}

double relu(double x) { return x > 0 ? x : 0; }
double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}
double gelu_by_erf(double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }
double silu(double x) { return x / (1 + std::exp(-x)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double hyperbolic_tangent(double x) { return std::tanh(x); }

std::vector<double> values_after(const Op& op, const std::vector<double>& values) {
  OpHarness harness(op, {{Shape{static_cast<int64_t>(values.size())}}}, {.batch = 1});
  fill(harness.inputs[0], values);
  harness.forward();
  return values_of(harness.outputs[0]);
}

std::vector<double> gradient(const Op& op, const std::vector<double>& values) {
  OpHarness harness(op, {{Shape{static_cast<int64_t>(values.size())}}}, {.batch = 1});
  fill(harness.inputs[0], values);
  fill(harness.output_gradients[0], 1.0);
  harness.forward();
  harness.backward();
  return values_of(harness.input_gradients[0]);
}

TEST(Relu, KeepsPositiveValuesAndNothingElse) {
  EXPECT_EQ(values_after(Relu{}, {-2, -0.0, 0, 0.5, 3}), (std::vector<double>{0, 0, 0, 0.5, 3}));
  EXPECT_EQ(gradient(Relu{}, {-2, 0, 0.5, 3}), (std::vector<double>{0, 0, 1, 1}));
}

TEST(Gelu, AgreesWithValuesWorkedOutByHand) {
  // 0.5 (1 + tanh(0.79788456 * 1.044715)) = 0.5 (1 + 0.68238438) and its mirror image x - gelu(x).
  expect_near(values_after(Gelu{}, {0, 1, -1}), {0, 0.84119199, -0.15880801}, 1e-7, "gelu");
  expect_near(gradient(Gelu{}, {0, 100, -100}), {0.5, 1, 0}, 1e-7, "derivative");
}

TEST(Gelu, KeepsItsRelativeAccuracyWhereItIsTiny) {
  const double x = -4;
  EXPECT_NEAR(values_after(Gelu{}, {x})[0] / gelu(x), 1, 1e-5);
}

TEST(Gelu, StaysFiniteWhereCubesOverflow) {
  EXPECT_EQ(values_after(Gelu{}, {1e30, -1e30}), (std::vector<double>{static_cast<float>(1e30), 0}));
  expect_near(gradient(Gelu{}, {1e30, -1e30}), {1, 0}, 1e-25, "derivative");
}

constexpr Gelu kErf{GeluKind::erf};

TEST(GeluByErf, AgreesWithTheNormalDistribution) {
  // Phi(1) = 0.841344746068543, and the density there 0.241970724519143.
  expect_near(values_after(kErf, {0, 1, -1}), {0, 0.841344746, -0.158655254}, 1e-7, "gelu");
  expect_near(gradient(kErf, {0, 1, -1}), {0.5, 1.083315471, -0.083315471}, 2e-7, "derivative");
}

TEST(GeluByErf, KeepsItsRelativeAccuracyWhereItIsTiny) {
  // 16 x² / 2 roundings of the exponent are more than the fit's error there.
  for (const double x : {-0.1, -1.0, -3.0, -6.0, -9.0})
    EXPECT_NEAR(values_after(kErf, {x})[0] / gelu_by_erf(x), 1, 1e-5) << x;
}

TEST(GeluByErf, IsOffByAFewRoundingsAnywhere) {
  std::vector<double> x;
  for (int i = -12000; i <= 12000; ++i) x.push_back(static_cast<float>(i) / 1024);
  const auto y = values_after(kErf, x), slopes = gradient(kErf, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const double phi = 0.5 * std::erfc(-x[i] / std::sqrt(2.0)),
                 density = std::exp(-x[i] * x[i] / 2) / std::sqrt(2 * std::acos(-1.0));
    EXPECT_NEAR(y[i], gelu_by_erf(x[i]), 3e-7 * std::max(1.0, std::fabs(x[i]))) << x[i];
    EXPECT_NEAR(slopes[i], phi + x[i] * density, 5e-7) << x[i];
  }
}

TEST(GeluByErf, StaysFiniteWhereSquaresOverflow) {
  EXPECT_EQ(values_after(kErf, {1e30, -1e30, kInfinity}),
            (std::vector<double>{static_cast<float>(1e30), 0, kInfinity}));
  expect_near(gradient(kErf, {1e30, -1e30, kInfinity, -kInfinity}), {1, 0, 1, 0}, 1e-25, "derivative");
}

TEST(Silu, AgreesWithValuesWorkedOutByHand) {
  // ln 3 times 3/4; the derivative there is 3/4 + ln 3 times 3/16.
  const double log3 = std::log(3.0);
  expect_near(values_after(Silu{}, {0, log3, -log3}), {0, 0.75 * log3, -0.25 * log3}, 1e-7, "silu");
  expect_near(gradient(Silu{}, {0, log3}), {0.5, 0.75 + log3 * 3 / 16}, 1e-6, "derivative");
}

TEST(Silu, StaysFiniteWhereExponentialsOverflow) {
  EXPECT_EQ(values_after(Silu{}, {1e30, -1e30}), (std::vector<double>{static_cast<float>(1e30), 0}));
  expect_near(gradient(Silu{}, {1e30, -1e30}), {1, 0}, 1e-25, "derivative");
}

TEST(Sigmoid, SaturatesWithoutOverflow) {
  EXPECT_EQ(values_after(Sigmoid{}, {0, 1000, -1000}), (std::vector<double>{0.5, 1, 0}));
  expect_near(values_after(Sigmoid{}, {std::log(3.0)}), {0.75}, 1e-7, "sigmoid(ln 3)");
}

TEST(Tanh, SaturatesAndIsOdd) {
  EXPECT_EQ(values_after(Tanh{}, {0, 1000, -1000}), (std::vector<double>{0, 1, -1}));
  expect_near(values_after(Tanh{}, {std::log(2.0), -std::log(2.0)}), {0.6, -0.6}, 1e-7, "tanh(ln 2)");
}

TEST(Activations, LetNotANumberThrough) {
  for (const Op& op : {Op{Relu{}}, Op{Gelu{}}, Op{kErf}, Op{Silu{}}, Op{Sigmoid{}}, Op{Tanh{}}}) {
    EXPECT_TRUE(std::isnan(values_after(op, {kNan})[0])) << name_of(op);
    OpHarness harness(op, {{Shape{1}}}, {.batch = 1});
    fill(harness.inputs[0], 0.5);
    fill(harness.output_gradients[0], kNan);
    harness.forward();
    harness.backward();
    EXPECT_TRUE(std::isnan(values_of(harness.input_gradients[0])[0])) << name_of(op);
  }
  EXPECT_EQ(values_after(Relu{}, {kInfinity})[0], kInfinity);
  EXPECT_EQ(values_after(Gelu{}, {kInfinity})[0], kInfinity);
}

// The vectorised loops must give the bits of the scalar formula, which is what a CUDA kernel computes.
template <class Formula>
void expect_bits_of_formula(const Op& op) {
  std::vector<double> x = random_values(1003, 7, -9, 9);
  const std::vector<double> y = values_after(op, x), dx = gradient(op, x);
  for (size_t i = 0; i < x.size(); ++i) {
    const float forward = Formula::forward(static_cast<float>(x[i]));
    const bool reads_output = Formula::kBackwardReads == ops::ForwardValue::output;
    ASSERT_EQ(y[i], forward) << name_of(op) << "(" << x[i] << ")";
    ASSERT_EQ(dx[i], Formula::backward(1.0f, reads_output ? forward : static_cast<float>(x[i]))) << x[i];
  }
}

TEST(Activations, KernelsGiveTheBitsOfTheirFormulas) {
  expect_bits_of_formula<ops::ReluFormula>(Relu{});
  expect_bits_of_formula<ops::GeluFormula>(Gelu{});
  expect_bits_of_formula<ops::GeluErfFormula>(kErf);
  expect_bits_of_formula<ops::SiluFormula>(Silu{});
  expect_bits_of_formula<ops::SigmoidFormula>(Sigmoid{});
  expect_bits_of_formula<ops::TanhFormula>(Tanh{});
}

TEST(Activations, KeepWhatTheirBackwardReads) {
  const std::vector<TensorSpec> inputs{{Shape{4}}};
  EXPECT_TRUE(ops::infer(Relu{}, inputs).backward_needs_output);
  EXPECT_FALSE(ops::infer(Relu{}, inputs).backward_needs_input[0]);
  EXPECT_FALSE(ops::infer(Gelu{}, inputs).backward_needs_output);
  EXPECT_TRUE(ops::infer(Gelu{}, inputs).backward_needs_input[0]);
  EXPECT_TRUE(ops::infer(Tanh{}, inputs).elementwise);
}

TEST(Activations, RefuseIntegersAndWrongNumbersOfInputs) {
  EXPECT_THROW(ops::infer(Relu{}, std::vector<TensorSpec>{{Shape{4}, DType::int32}}), ConfigError);
  EXPECT_THROW(ops::infer(Gelu{}, std::vector<TensorSpec>(2, {Shape{4}})), ConfigError);
}

TEST(Activations, MatchPyTorch) {
  expect_matches_golden(Relu{}, read_golden("relu", "wide"));
  expect_matches_golden(Gelu{}, read_golden("gelu", "wide"), {}, 5e-7);
  expect_matches_golden(kErf, read_golden("gelu", "by_erf"), {}, 5e-7);
  expect_matches_golden(Silu{}, read_golden("silu", "wide"), {}, 5e-7);
  expect_matches_golden(Sigmoid{}, read_golden("sigmoid", "wide"), {}, 5e-7);
  expect_matches_golden(Tanh{}, read_golden("tanh", "wide"), {}, 5e-7);
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Relu>() {
  return activation_cases(Relu{}, relu);
}
template <>
std::vector<OpCase> cases_of<Gelu>() {
  std::vector<OpCase> cases = activation_cases(Gelu{}, gelu);
  for (OpCase& c : activation_cases(kErf, gelu_by_erf)) {
    c.name += "_by_erf";
    cases.push_back(std::move(c));
  }
  return cases;
}
template <>
std::vector<OpCase> cases_of<Silu>() {
  return activation_cases(Silu{}, silu);
}
template <>
std::vector<OpCase> cases_of<Sigmoid>() {
  return activation_cases(Sigmoid{}, sigmoid);
}
template <>
std::vector<OpCase> cases_of<Tanh>() {
  return activation_cases(Tanh{}, hyperbolic_tangent);
}

}  // namespace lockstep::testing
