#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

TEST(Add, PassesTheGradientToBothInputs) {
  OpHarness harness(Add{}, {{Shape{3}}, {Shape{3}}}, {.batch = 1});
  fill(harness.inputs[0], {1, 2, 3});
  fill(harness.inputs[1], {10, -2, 0.5});
  fill(harness.output_gradients[0], {7, 8, 9});
  harness.forward();
  harness.backward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{11, 0, 3.5}));
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{7, 8, 9}));
  EXPECT_EQ(values_of(harness.input_gradients[1]), (std::vector<double>{7, 8, 9}));
}

TEST(Add, RefusesTensorsOfDifferentShapesOrTypes) {
  EXPECT_THROW(ops::infer(Add{}, std::vector<TensorSpec>{{Shape{3}}, {Shape{4}}}), ConfigError);
  EXPECT_THROW(ops::infer(Add{}, std::vector<TensorSpec>{{Shape{3}}, {Shape{3}, DType::int32}}), ConfigError);
  EXPECT_THROW(ops::infer(Add{}, std::vector<TensorSpec>{{Shape{3}}}), ConfigError);
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Add>() {
  const Reference reference = [](const std::vector<Array>& inputs, const std::vector<Array>&) {
    Array sum = inputs[0];
    for (size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += inputs[1].values[i];
    return std::vector<Array>{sum};
  };
  OpCase one{
      .name = "one", .op = Add{}, .inputs = {{Shape{1}}, {Shape{1}}}, .batch = 1, .reference = reference};
  OpCase prime{
      .name = "prime", .op = Add{}, .inputs = {{{7, 11}}, {{7, 11}}}, .batch = 3, .reference = reference};
  OpCase threads{
      .name = "threads", .op = Add{}, .inputs = {{Shape{17001}}, {Shape{17001}}}, .reference = reference};
  threads.options.intra_op_threads = 3;
  return {one, prime, threads};
}

}  // namespace lockstep::testing
