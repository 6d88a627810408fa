#include <gtest/gtest.h>

#include "lockstep/error.h"
#include "ops/op_cases.h"

namespace lockstep::testing {
namespace {

TEST(Fork, AddsTheGradientsOfBothReaders) {
  OpHarness harness(Fork{}, {{Shape{3}}}, {.batch = 1});
  fill(harness.inputs[0], {1, 2, 3});
  fill(harness.output_gradients[0], {7, 8, 9});
  fill(harness.output_gradients[1], {0.5, -8, 1});
  harness.forward();
  harness.backward();
  EXPECT_EQ(harness.outputs[0].data, harness.inputs[0].data);
  EXPECT_EQ(values_of(harness.outputs[1]), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{7.5, 0, 10}));
}

TEST(Fork, RefusesOutputsThatAreNotTheInputsMemory) {
  OpHarness harness(Fork{}, {{Shape{3}}}, {.batch = 1});
  harness.outputs[1].data = harness.output_gradients[0].data;
  EXPECT_THROW(harness.forward(), InternalError);
}

TEST(Fork, OfTokensCarriesNoGradient) {
  const ops::OpSignature signature = ops::infer(Fork{}, std::vector<TensorSpec>{{Shape{3}, DType::int32}});
  EXPECT_FALSE(signature.differentiable[0]);
  EXPECT_EQ(signature.outputs[1].dtype, DType::int32);
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Fork>() {
  const Reference reference = [](const std::vector<Array>& inputs, const std::vector<Array>&) {
    return std::vector<Array>{inputs[0], inputs[0]};
  };
  OpCase one{.name = "one", .op = Fork{}, .inputs = {{Shape{1}}}, .batch = 1, .reference = reference};
  OpCase prime{.name = "prime", .op = Fork{}, .inputs = {{{5, 13}}}, .batch = 3, .reference = reference};
  OpCase blocks{.name = "blocks", .op = Fork{}, .inputs = {{Shape{5003}}}, .reference = reference};
  return {one, prime, blocks};
}

}  // namespace lockstep::testing
