#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

TEST(Multiply, GivesEachInputTheGradientTimesTheOther) {
  OpHarness harness(Multiply{}, {{Shape{3}}, {Shape{3}}}, {.batch = 1});
  fill(harness.inputs[0], {1, 2, 3});
  fill(harness.inputs[1], {10, -2, 0.5});
  fill(harness.output_gradients[0], {7, 8, 10});
  harness.forward();
  harness.backward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{10, -4, 1.5}));
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{70, -16, 5}));
  EXPECT_EQ(values_of(harness.input_gradients[1]), (std::vector<double>{7, 16, 30}));
}

TEST(Multiply, RefusesTensorsOfDifferentShapesOrTypes) {
  EXPECT_THROW(ops::infer(Multiply{}, std::vector<TensorSpec>{{Shape{3}}, {Shape{4}}}), ConfigError);
  EXPECT_THROW(ops::infer(Multiply{}, std::vector<TensorSpec>{{Shape{3}}, {Shape{3}, DType::int32}}),
               ConfigError);
  EXPECT_THROW(ops::infer(Multiply{}, std::vector<TensorSpec>{{Shape{3}}}), ConfigError);
}

TEST(Multiply, MatchesPyTorch) { expect_matches_golden(Multiply{}, read_golden("multiply", "plain")); }

}  // namespace

template <>
std::vector<OpCase> cases_of<Multiply>() {
  const Reference reference = [](const std::vector<Array>& inputs, const std::vector<Array>&) {
    Array product = inputs[0];
    for (size_t i = 0; i < product.values.size(); ++i) product.values[i] *= inputs[1].values[i];
    return std::vector<Array>{product};
  };
  const auto make = [&](std::string name, Shape shape, int64_t batch, int threads) {
    OpCase c{.name = std::move(name), .op = Multiply{}, .inputs = {{shape}, {shape}}, .batch = batch};
    c.options.intra_op_threads = threads;
    c.reference = reference;
    return c;
  };
  return {make("one", {1}, 1, 1), make("prime", {7, 11}, 3, 1), make("threads", {17001}, 2, 3)};
}

}  // namespace lockstep::testing
