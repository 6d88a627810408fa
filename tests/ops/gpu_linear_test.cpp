// Linear layers that do the work of the GELUs beside them, against the three kernels apart.

#include <gtest/gtest.h>

#include "ops/fusion.h"
#include "ops/op_testing.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kBatch = 7, kIn = 24, kUnits = 40;

struct LinearCase {
  DType compute;
  bool bias, gelu_behind, gelu_before;
};

/// gelu -> linear -> gelu, by one kernel each, or with what the case fuses.
struct LinearChain {
  explicit LinearChain(const LinearCase& c, bool fused)
      : before(Gelu{}, {{Shape{kIn}}}, {.batch = kBatch, .compute = c.compute}),
        linear(Linear{.units = kUnits, .bias = c.bias}, {{Shape{kIn}}},
               {.batch = kBatch,
                .compute = c.compute,
                .fused = {.gelu_behind = fused && c.gelu_behind, .gelu_before = fused && c.gelu_before}}),
        behind(Gelu{}, {{Shape{kUnits}}}, {.batch = kBatch, .compute = c.compute}) {
    fill(before.inputs[0], random_values(kBatch * kIn, 1, -3, 3));
    before.forward();
    fill(linear.inputs[0], values_of(before.outputs[0]));
    uint32_t stream = 2;
    for (const Tensor& parameter : linear.parameters)
      fill(parameter, random_values(parameter.count(), stream++));
    fill(linear.output_gradients[0], random_values(kBatch * kUnits, stream));
    if (fused && c.gelu_behind) linear.outputs.push_back(linear.make({Shape{kBatch, kUnits}, c.compute}));
    if (fused && c.gelu_before) {
      linear.inputs.push_back(linear.make({Shape{kBatch, kIn}, c.compute}));
      fill(linear.inputs[1], values_of(before.inputs[0]));
    }
  }

  OpHarness before, linear, behind;
};

TEST(FusedLinear, AgreesWithKernelsApart) {
  for (const DType compute : {DType::bfloat16, DType::float16})
    for (const bool bias : {false, true})
      for (const auto& [gelu_behind, gelu_before] :
           {std::pair(true, false), std::pair(false, true), std::pair(true, true)}) {
        SCOPED_TRACE(std::string(name_of(compute)) + (bias ? ", bias" : "") +
                     (gelu_behind ? ", gelu behind" : "") + (gelu_before ? ", gelu before" : ""));
        const LinearCase c{compute, bias, gelu_behind, gelu_before};
        const double tolerance = compute == DType::bfloat16 ? 1e-2 : 2e-3;
        LinearChain fused(c, true), apart(c, false);
        for (LinearChain* chain : {&fused, &apart}) {
          chain->linear.forward();
          chain->linear.backward();
          chain->linear.backward_weight(true);
        }
        expect_near(values_of(fused.linear.outputs[0]), values_of(apart.linear.outputs[0]), tolerance, "y");
        fill(apart.behind.inputs[0], values_of(apart.linear.outputs[0]));
        apart.behind.forward();
        if (gelu_behind)
          expect_near(values_of(fused.linear.outputs[1]), values_of(apart.behind.outputs[0]), tolerance,
                      "gelu(y)");
        fill(apart.before.output_gradients[0], values_of(apart.linear.input_gradients[0]));
        apart.before.backward();
        expect_near(
            values_of(fused.linear.input_gradients[0]),
            values_of(gelu_before ? apart.before.input_gradients[0] : apart.linear.input_gradients[0]),
            tolerance, "gradient of the input");
        EXPECT_EQ(values_of_all(fused.linear.parameter_gradients),
                  values_of_all(apart.linear.parameter_gradients));
      }
}

TEST(FusedLinear, MakesNoInputGradientThatIsNotWanted) {
  const LinearCase c{.compute = DType::bfloat16, .bias = true, .gelu_behind = false, .gelu_before = true};
  LinearChain fused(c, true), apart(c, false);
  fused.linear.input_gradients[0].data = nullptr;
  fused.linear.backward();
  apart.linear.backward();
  EXPECT_EQ(values_of_all(fused.linear.parameter_gradients), values_of_all(apart.linear.parameter_gradients));
}

TEST(Fusion, TakesRowsOfTwoByteNumbersInMultiplesOfEight) {
  const auto can_fuse = [](int64_t in, int64_t units, DType compute) {
    return ops::can_fuse_gelu(Linear{.units = units}, {{5, in}}, compute);
  };
  EXPECT_TRUE(can_fuse(768, 3072, DType::bfloat16));
  EXPECT_TRUE(can_fuse(8, 24, DType::float16));
  EXPECT_FALSE(can_fuse(768, 3072, DType::float32));
  EXPECT_FALSE(can_fuse(768, 10, DType::bfloat16));
  EXPECT_FALSE(can_fuse(28, 512, DType::bfloat16));
}

}  // namespace
}  // namespace lockstep::testing
