// Layer norms that do the work of the sum and the fork before them, against the three kernels apart.

#include <gtest/gtest.h>

#include <cmath>

#include "ops/op_testing.h"

namespace lockstep::testing {
namespace {

struct LayerNormCase {
  int64_t rows, width;
  DType compute = DType::float32;
  bool bias = true;
  bool centered = true;  ///< false: RMS norm

  Op op() const { return centered ? Op{LayerNorm{.bias = bias}} : Op{RmsNorm{}}; }
};

/// add -> fork -> layer norm, where the fork's other reader gives its gradient, by one kernel each or by one.
struct LayerNormChain {
  LayerNormChain(const LayerNormCase& c, bool fused)
      : add(Add{}, {{Shape{c.width}}, {Shape{c.width}}}, {.batch = c.rows, .compute = c.compute}),
        fork(Fork{}, {{Shape{c.width}}}, {.batch = c.rows, .compute = c.compute}),
        norm(c.op(), {{Shape{c.width}}},
             {.batch = c.rows, .compute = c.compute, .fused = {.add_before = fused, .fork_before = fused}}) {
    const int64_t count = c.rows * c.width;
    for (const uint32_t term : {0, 1}) fill(add.inputs[term], random_values(count, term, -2, 3));
    fill(norm.output_gradients[0], random_values(count, 2));
    fill(fork.output_gradients[1], random_values(count, 3));
    uint32_t stream = 4;
    for (const Tensor& parameter : norm.parameters)
      fill(parameter, random_values(parameter.count(), stream++));
    if (!fused) return;
    norm.inputs.push_back(norm.make({Shape{c.rows, c.width}, c.compute}));
    norm.outputs.push_back(norm.make({Shape{c.rows, c.width}, c.compute}));
    norm.output_gradients.push_back(norm.make({Shape{c.rows, c.width}, c.compute}));
    for (const size_t term : {0, 1}) fill(norm.inputs[term], values_of(add.inputs[term]));
    fill(norm.output_gradients[1], values_of(fork.output_gradients[1]));
  }

  void run_apart() {
    add.forward();
    fill(norm.inputs[0], values_of(add.outputs[0]));
    norm.forward();
    norm.backward();
    fill(fork.output_gradients[0], values_of(norm.input_gradients[0]));
    fork.backward();
  }
  /// Backward's input is the sum.
  void run_fused() {
    norm.forward();
    fill(norm.inputs[0], values_of(norm.outputs[1]));
    norm.backward();
  }

  OpHarness add, fork, norm;
};

class FusedLayerNormSizes : public ::testing::TestWithParam<LayerNormCase> {};

TEST_P(FusedLayerNormSizes, HasTheBitsOfKernelsApart) {
  LayerNormChain fused(GetParam(), true), apart(GetParam(), false);
  fused.run_fused();
  apart.run_apart();
  EXPECT_EQ(values_of(fused.norm.outputs[1]), values_of(apart.add.outputs[0]));
  EXPECT_EQ(values_of(fused.norm.outputs[0]), values_of(apart.norm.outputs[0]));
  EXPECT_EQ(values_of_all(fused.norm.auxiliary), values_of_all(apart.norm.auxiliary));
  EXPECT_EQ(values_of(fused.norm.input_gradients[0]), values_of(apart.fork.input_gradients[0]));
  EXPECT_EQ(values_of_all(fused.norm.parameter_gradients), values_of_all(apart.norm.parameter_gradients));
}

std::vector<LayerNormCase> sizes() {
  std::vector<LayerNormCase> all;
  for (const DType compute : {DType::float32, DType::bfloat16, DType::float16})
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{9, 1},
                                      {9, 7},
                                      {4101, 64},  // more rows than backward has warps
                                      {11, 250},
                                      {11, 768},
                                      {3, 1024},
                                      {5, 1600},
                                      {3, 4097}})
      for (const bool centered : {true, false}) all.push_back({rows, width, compute, width != 250, centered});
  // Beyond registers, in packs and not, and several rows of a block.
  all.push_back({259, 8200});
  all.push_back({.rows = 259, .width = 8200, .centered = false});
  all.push_back({2, 16392, DType::bfloat16});
  all.push_back({2, 16387});
  all.push_back({2, 16387, DType::bfloat16});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, FusedLayerNormSizes, ::testing::ValuesIn(sizes()), [](const auto& info) {
  return std::string(info.param.centered ? "" : "rms_") + std::to_string(info.param.width) + "_" +
         std::string(name_of(info.param.compute));
});

TEST(FusedLayerNorm, AgreesWithValuesInDoublePrecision) {
  for (const int64_t width : {7, 768, 1600}) {
    constexpr int64_t kRows = 5;
    LayerNormChain chain({kRows, width}, true);
    const auto a = values_of(chain.norm.inputs[0]), b = values_of(chain.norm.inputs[1]);
    const auto weight = values_of(chain.norm.parameters[0]), bias = values_of(chain.norm.parameters[1]);
    const auto dy = values_of(chain.norm.output_gradients[0]),
               other = values_of(chain.norm.output_gradients[1]);
    chain.run_fused();
    const auto columns = static_cast<size_t>(width);
    std::vector<double> sum(a.size()), y(a.size()), dx(a.size());
    for (size_t begin = 0; begin < a.size(); begin += columns) {
      const double share = 1.0 / static_cast<double>(width);
      double mean = 0, variance = 0, mean_g = 0, mean_gn = 0;
      for (size_t i = begin; i < begin + columns; ++i) mean += (sum[i] = a[i] + b[i]) * share;
      for (size_t i = begin; i < begin + columns; ++i) variance += std::pow(sum[i] - mean, 2) * share;
      const double inverse = 1 / std::sqrt(variance + static_cast<double>(LayerNorm{}.epsilon));
      const auto normalized = [&](size_t i) { return (sum[i] - mean) * inverse; };
      for (size_t i = begin; i < begin + columns; ++i) {
        y[i] = normalized(i) * weight[i - begin] + bias[i - begin];
        mean_g += dy[i] * weight[i - begin] * share;
        mean_gn += dy[i] * weight[i - begin] * normalized(i) * share;
      }
      for (size_t i = begin; i < begin + columns; ++i)
        dx[i] = inverse * (dy[i] * weight[i - begin] - mean_g - normalized(i) * mean_gn) + other[i];
    }
    expect_near(values_of(chain.norm.outputs[1]), sum, 1e-6, "sum");
    expect_near(values_of(chain.norm.outputs[0]), y, 1e-5, "y");
    expect_near(values_of(chain.norm.input_gradients[0]), dx, 1e-5, "gradient of the sum");
  }
}

TEST(FusedLayerNorm, DoesNotReadTheOtherGradientWhereNoneIsWanted) {
  for (const int64_t width : {64, 250, 1600, 8200}) {
    const LayerNormCase c{3, width};
    LayerNormChain fused(c, true), apart(c, false);
    for (LayerNormChain* chain : {&fused, &apart}) chain->norm.input_gradients[0].data = nullptr;
    fused.norm.output_gradients[1].data = nullptr;
    fused.run_fused();
    apart.add.forward();
    fill(apart.norm.inputs[0], values_of(apart.add.outputs[0]));
    apart.norm.forward();
    apart.norm.backward();
    EXPECT_EQ(values_of_all(fused.norm.parameter_gradients), values_of_all(apart.norm.parameter_gradients));
  }
}

/// What the memory plan may do: the sum takes a term's memory, and the gradient the other reader's.
TEST(FusedLayerNorm, WritesOverWhatItHasRead) {
  for (const int64_t width : {250, 768, 1600, 8200}) {
    const LayerNormCase c{3, width};
    LayerNormChain in_place(c, true), fused(c, true);
    in_place.norm.outputs[1] = in_place.norm.inputs[1];
    in_place.norm.input_gradients[0] = in_place.norm.output_gradients[1];
    for (LayerNormChain* chain : {&in_place, &fused}) chain->run_fused();
    EXPECT_EQ(values_of_all(in_place.norm.outputs), values_of_all(fused.norm.outputs));
    EXPECT_EQ(values_of_all(in_place.norm.input_gradients), values_of_all(fused.norm.input_gradients));
  }
}

/// Adds only, or shares a gradient only.
TEST(FusedLayerNorm, DoesTheWorkOfEitherNeighbourAlone) {
  const LayerNormCase c{3, 768, DType::bfloat16};
  LayerNormChain both(c, true), apart(c, false);
  both.run_fused();
  apart.run_apart();
  OpHarness adds(LayerNorm{}, {{Shape{c.width}}},
                 {.batch = c.rows, .compute = c.compute, .fused = {.add_before = true}}),
      forks(LayerNorm{}, {{Shape{c.width}}},
            {.batch = c.rows, .compute = c.compute, .fused = {.fork_before = true}});
  for (OpHarness* harness : {&adds, &forks}) {
    for (size_t i = 0; i < 2; ++i) fill(harness->parameters[i], values_of(both.norm.parameters[i]));
    fill(harness->output_gradients[0], values_of(both.norm.output_gradients[0]));
  }
  adds.inputs.push_back(adds.make(TensorSpec{Shape{c.rows, c.width}, c.compute}));
  adds.outputs.push_back(adds.make(TensorSpec{Shape{c.rows, c.width}, c.compute}));
  for (const size_t term : {0, 1}) fill(adds.inputs[term], values_of(both.add.inputs[term]));
  adds.forward();
  EXPECT_EQ(values_of_all(adds.outputs), values_of_all(both.norm.outputs));
  fill(adds.inputs[0], values_of(adds.outputs[1]));
  adds.backward();
  EXPECT_EQ(values_of(adds.input_gradients[0]), values_of(apart.norm.input_gradients[0]));

  forks.output_gradients.push_back(forks.make(TensorSpec{Shape{c.rows, c.width}, c.compute}));
  fill(forks.output_gradients[1], values_of(both.norm.output_gradients[1]));
  fill(forks.inputs[0], values_of(apart.norm.inputs[0]));
  forks.forward();
  EXPECT_EQ(values_of(forks.outputs[0]), values_of(apart.norm.outputs[0]));
  forks.backward();
  EXPECT_EQ(values_of(forks.input_gradients[0]), values_of(both.norm.input_gradients[0]));
}

}  // namespace
}  // namespace lockstep::testing
