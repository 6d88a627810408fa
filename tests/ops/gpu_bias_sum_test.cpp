// Activations and norms that sum the gradient of the bias before them, against a pass of its own.

#include <gtest/gtest.h>

#include <utility>

#include "ops/cuda/column_sum.h"
#include "ops/cuda/norm_column_sum.h"
#include "ops/gpu_memory.h"
#include "ops/op_testing.h"
#include "ops/replica_sums.h"

namespace lockstep::testing {
namespace {

using Values = std::vector<float>;

struct BiasSumCase {
  Op op;
  int64_t rows, width;
  DType compute = DType::float32;
  int replicas = 1;
  bool fork = false;  ///< a norm also adds the gradient of its input's other reader

  bool is_norm() const {
    return std::holds_alternative<LayerNorm>(op) || std::holds_alternative<RmsNorm>(op);
  }
  ops::KernelOptions options(bool fused) const {
    return {.batch = rows * replicas,
            .virtual_replicas = replicas,
            .compute = compute,
            .fused = {.fork_before = fork, .bias_before = fused}};
  }
};

std::string text_of(const BiasSumCase& c) {
  return std::string(name_of(c.op)) + ", " + std::to_string(c.replicas) + " x " + std::to_string(c.rows) +
         " x " + std::to_string(c.width) + " of " + std::string(name_of(c.compute)) +
         (c.fork ? ", with a fork" : "");
}

std::unique_ptr<OpHarness> make_op(const BiasSumCase& c, bool fused) {
  auto harness =
      std::make_unique<OpHarness>(c.op, std::vector<TensorSpec>{{Shape{c.width}}}, c.options(fused));
  const int64_t rows = c.rows * c.replicas;
  fill(harness->inputs[0], random_values(rows * c.width, 1, -2, 3));
  fill(harness->output_gradients[0], random_values(rows * c.width, 2));
  uint32_t stream = 3;
  for (const Tensor& parameter : harness->parameters)
    fill(parameter, random_values(parameter.count(), stream++));
  if (c.fork) {
    harness->output_gradients.push_back(harness->make({Shape{rows, c.width}, c.compute}));
    fill(harness->output_gradients[1], random_values(rows * c.width, 9));
  }
  if (fused) harness->parameter_gradients.push_back(harness->make({Shape{c.width}}));
  harness->forward();
  return harness;
}

/// The sums of a gradient's columns by a pass of their own, in the order of a linear layer before the op.
template <class Sum>
std::vector<double> sum_apart(const BiasSumCase& c, const std::vector<double>& gradient,
                              const std::vector<double>& onto) {
  const TestedGpu gpu;
  const Sum sum(c.rows, c.width, c.compute, c.replicas);
  const device::Buffer x = gpu.upload({gradient.begin(), gradient.end()}, c.compute),
                       sums = gpu.upload({onto.begin(), onto.end()}),
                       workspace = gpu.upload(
                           Values(static_cast<size_t>(sum.workspace_bytes()) / sizeof(float) + 1, NAN));
  sum.run(x.data(), floats_of(sums), c.replicas == 1, workspace.data(), *gpu.stream);
  const Values found = gpu.download(sums, onto.size());
  return {found.begin(), found.end()};
}

void expect_the_bits_of_a_pass_of_its_own(const BiasSumCase& c) {
  const auto fused = make_op(c, true), apart = make_op(c, false);
  const std::vector<double> onto = random_values(c.width, 11);
  const bool accumulates = c.replicas == 1;  // of several, sums are complete
  for (OpHarness* harness : {fused.get(), apart.get()})
    for (const Tensor& gradient : harness->parameter_gradients) fill(gradient, 0.25);
  fill(fused->parameter_gradients.back(), onto);
  fused->backward_input(accumulates);
  apart->backward_input(accumulates);
  const auto gradient = values_of(fused->input_gradients[0]);
  EXPECT_EQ(gradient, values_of(apart->input_gradients[0])) << text_of(c);
  for (size_t p = 0; p < apart->parameter_gradients.size(); ++p)
    EXPECT_EQ(values_of(fused->parameter_gradients[p]), values_of(apart->parameter_gradients[p]))
        << text_of(c);
  const auto expected = c.is_norm() ? sum_apart<ops::NormColumnSum>(c, gradient, onto)
                                    : sum_apart<ops::ColumnSum>(c, gradient, onto);
  EXPECT_EQ(values_of(fused->parameter_gradients.back()), expected) << text_of(c);
}

constexpr DType kBiasSumTypes[] = {DType::float32, DType::bfloat16, DType::float16};

TEST(BiasSums, OfActivationsHaveTheBitsOfAPassOfItsOwn) {
  for (const DType type : kBiasSumTypes)
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1}, {7, 3}, {64, 10}, {600, 64}})
      expect_the_bits_of_a_pass_of_its_own({Gelu{}, rows, width, type});
  for (const Op& op : {Op{Relu{}}, Op{Silu{}}, Op{Sigmoid{}}, Op{Tanh{}}})
    expect_the_bits_of_a_pass_of_its_own({op, 33, 24, DType::bfloat16});
}

TEST(BiasSums, OfNormsHaveTheBitsOfAPassOfItsOwn) {
  for (const DType type : kBiasSumTypes)
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{9, 1},
                                      {9, 7},
                                      {100, 64},
                                      {11, 250},
                                      {11, 512},
                                      {11, 768},
                                      {19, 1024},
                                      {5, 1600},
                                      {3, 4097}})
      expect_the_bits_of_a_pass_of_its_own({LayerNorm{}, rows, width, type, 1, width % 2 == 0});
  for (const Op& op : {Op{LayerNorm{.bias = false}}, Op{RmsNorm{}}})
    for (const bool fork : {false, true})
      expect_the_bits_of_a_pass_of_its_own({op, 11, 768, DType::bfloat16, 1, fork});
  // More rows than backward has warps; beyond registers, and several rows of a block.
  expect_the_bits_of_a_pass_of_its_own({LayerNorm{}, 4101, 8, DType::bfloat16});
  expect_the_bits_of_a_pass_of_its_own({LayerNorm{}, 259, 8200, DType::float32, 1, true});
}

TEST(BiasSums, OfVirtualReplicasStayApartAndAreAddedAlongTheTree) {
  for (const int replicas : {2, 7})
    for (const DType type : {DType::float32, DType::bfloat16}) {
      for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{8, 10}, {600, 8}})
        expect_the_bits_of_a_pass_of_its_own({Gelu{}, rows, width, type, replicas});
      for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{8, 10}, {16, 768}, {8, 1600}})
        expect_the_bits_of_a_pass_of_its_own({LayerNorm{}, rows, width, type, replicas, width == 768});
    }
}

/// Where a linear layer sums by itself, its call has no such gradient.
TEST(BiasSums, AreLeftOutIfNobodyAsks) {
  for (const Op& op : {Op{Gelu{}}, Op{LayerNorm{}}}) {
    const BiasSumCase c{op, 33, 64, DType::bfloat16};
    const auto asked = make_op(c, true), not_asked = make_op(c, true);
    not_asked->parameter_gradients.pop_back();
    asked->backward_input();
    not_asked->backward_input();
    EXPECT_EQ(values_of(asked->input_gradients[0]), values_of(not_asked->input_gradients[0]));
  }
}

Values norm_columns(int64_t rows, int64_t width, DType type, const Values& x, int replicas = 1) {
  const BiasSumCase c{LayerNorm{}, rows, width, type, replicas};
  const std::vector<double> sums = sum_apart<ops::NormColumnSum>(
      c, {x.begin(), x.end()}, std::vector<double>(static_cast<size_t>(width), 0));
  return {sums.begin(), sums.end()};
}

TEST(NormColumnSum, IsExactForWholeNumbersOfEveryShapeAndType) {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{1, 1},
                                    {7, 1},
                                    {500, 3},
                                    {64, 10},
                                    {300, 64},
                                    {33, 768},
                                    {17, 1024},
                                    {30, 1600},
                                    {3, 8195}})
    for (const DType type : kBiasSumTypes) {
      const Values x = small_numbers(rows * width, 3);
      Values expected(static_cast<size_t>(width));
      for (size_t i = 0; i < x.size(); ++i) expected[i % expected.size()] += x[i];
      EXPECT_EQ(norm_columns(rows, width, type, x), expected)
          << rows << " x " << width << " of " << name_of(type);
    }
}

TEST(NormColumnSum, AddsVirtualReplicasAlongTheTree) {
  for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{8, 10}, {64, 64}, {16, 1600}})
    for (const int replicas : {2, 3, 7}) {
      const Values x = random_floats(replicas * rows * width, 5);
      std::vector<Values> each;
      for (int replica = 0; replica < replicas; ++replica)
        each.push_back(
            norm_columns(rows, width, DType::float32,
                         {x.begin() + replica * rows * width, x.begin() + (replica + 1) * rows * width}));
      Values expected;
      for (size_t c = 0; c < static_cast<size_t>(width); ++c)
        expected.push_back(
            tree_sum(0, replicas, [&](int replica) { return each[static_cast<size_t>(replica)][c]; }));
      EXPECT_EQ(bits_of(norm_columns(rows, width, DType::float32, x, replicas)), bits_of(expected))
          << replicas << " replicas of " << rows << " x " << width;
    }
}

/// A linear layer whose bias a norm's kernel may sum sums it in the same order.
TEST(BiasSums, OfLinearLayersBeforeNormsAreInTheirOrder) {
  for (const bool norm_behind : {false, true}) {
    const BiasSumCase c{LayerNorm{}, 600, 64, DType::bfloat16};
    OpHarness linear(Linear{.units = c.width}, {{Shape{8}}},
                     {.batch = c.rows, .compute = c.compute, .fused = {.norm_behind = norm_behind}});
    fill(linear.inputs[0], random_values(c.rows * 8, 1));
    for (const Tensor& parameter : linear.parameters) fill(parameter, random_values(parameter.count(), 2));
    fill(linear.output_gradients[0], random_values(c.rows * c.width, 3));
    linear.forward();
    linear.backward();
    const std::vector<double> none(static_cast<size_t>(c.width), 0);
    const auto gradient = values_of(linear.output_gradients[0]);
    EXPECT_EQ(values_of(linear.parameter_gradients[1]), norm_behind
                                                            ? sum_apart<ops::NormColumnSum>(c, gradient, none)
                                                            : sum_apart<ops::ColumnSum>(c, gradient, none));
    // Somebody else has summed it.
    const auto summed = values_of(linear.parameter_gradients[1]);
    const auto weight = values_of(linear.parameter_gradients[0]);
    void* const data = std::exchange(linear.parameter_gradients[1].data, nullptr);
    linear.backward();
    EXPECT_EQ(values_of(linear.parameter_gradients[0]), weight);
    linear.parameter_gradients[1].data = data;
    EXPECT_EQ(values_of(linear.parameter_gradients[1]), summed);
  }
}

}  // namespace
}  // namespace lockstep::testing
