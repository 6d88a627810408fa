#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/op_cases.h"
#include "ops/op_expect.h"

namespace lockstep::testing {
namespace {

std::vector<Array> pool2d_reference(const Pool2d& op, const Array& x) {
  const int64_t stride = op.stride == 0 ? op.kernel : op.stride;
  const int64_t batch = x.shape[0], height = x.shape[1], width = x.shape[2], channels = x.shape[3];
  const auto size = [&](int64_t n) { return (n + 2 * op.padding - op.kernel) / stride + 1; };
  Array y{{batch, size(height), size(width), channels}, {}};
  for (int64_t n = 0; n < batch; ++n)
    for (int64_t row = 0; row < y.shape[1]; ++row)
      for (int64_t column = 0; column < y.shape[2]; ++column)
        for (int64_t c = 0; c < channels; ++c) {
          double sum = 0, largest = -std::numeric_limits<double>::infinity();
          int count = 0;
          for (int64_t h = row * stride - op.padding; h < row * stride - op.padding + op.kernel; ++h)
            for (int64_t w = column * stride - op.padding; w < column * stride - op.padding + op.kernel;
                 ++w) {
              if (h < 0 || h >= height || w < 0 || w >= width) continue;
              const double value = x.values[((n * height + h) * width + w) * channels + c];
              sum += value;
              largest = std::max(largest, value);
              ++count;
            }
          y.values.push_back(op.kind == PoolKind::max ? largest
                             : op.count_include_pad   ? sum / static_cast<double>(op.kernel * op.kernel)
                                                      : sum / count);
        }
  return {y};
}

OpCase make_pool2d(std::string name, Pool2d op, Shape input, int64_t batch = 2) {
  return {.name = (op.kind == PoolKind::max ? "max_" : "average_") + name,
          .op = op,
          .inputs = {{std::move(input)}},
          .batch = batch,
          .reference = [op](const auto& inputs, const auto&) { return pool2d_reference(op, inputs[0]); }};
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Pool2d>() {
  std::vector<OpCase> cases;
  for (const PoolKind kind : {PoolKind::max, PoolKind::average}) {
    cases.push_back(make_pool2d("one_pixel", {.kind = kind, .kernel = 1}, {1, 1, 1}, 1));
    cases.push_back(make_pool2d("kernel2", {.kind = kind, .kernel = 2}, {4, 6, 3}));
    cases.push_back(make_pool2d("kernel2_leaves_a_border", {.kind = kind, .kernel = 2}, {5, 7, 19}));
    cases.push_back(make_pool2d("overlapping", {.kind = kind, .kernel = 3, .stride = 1}, {5, 5, 2}, 3));
    cases.push_back(make_pool2d("padded", {.kind = kind, .kernel = 3, .stride = 2, .padding = 1}, {7, 6, 5}));
    cases.push_back(
        make_pool2d("stride_beyond_kernel", {.kind = kind, .kernel = 2, .stride = 3}, {8, 7, 33}));
    cases.push_back(make_pool2d("whole_image", {.kind = kind, .kernel = 5}, {5, 5, 7}, 1));
    cases.push_back(make_pool2d("two_threads", {.kind = kind, .kernel = 2, .stride = 1}, {4, 4, 3}, 5));
    cases.back().options.intra_op_threads = 2;
  }
  const auto counted = [](int64_t kernel, int64_t stride, int64_t padding) {
    return Pool2d{.kind = PoolKind::average,
                  .kernel = kernel,
                  .stride = stride,
                  .padding = padding,
                  .count_include_pad = true};
  };
  cases.push_back(make_pool2d("counts_padding", counted(3, 2, 1), {7, 6, 5}));
  cases.push_back(make_pool2d("counts_padding_overlapping", counted(4, 1, 2), {3, 5, 8}, 3));
  cases.push_back(make_pool2d("counts_padding_where_there_is_none", counted(2, 0, 0), {4, 6, 3}));
  return cases;
}

namespace {

TEST(Pool2d, MaximumAndItsGradient) {
  OpHarness harness(Pool2d{.kernel = 2}, {{Shape{2, 4, 1}}}, {.batch = 1});
  fill(harness.inputs[0], {1, 5, -3, -2, 4, 2, -1, -4});
  harness.forward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{5, -1}));
  EXPECT_EQ(values_of(harness.auxiliary[0]), (std::vector<double>{1, 6}));
  fill(harness.output_gradients[0], {10, 20});
  harness.backward();
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{0, 10, 0, 0, 0, 0, 20, 0}));
}

TEST(Pool2d, OverlappingMaximaAddTheirGradients) {
  OpHarness harness(Pool2d{.kernel = 2, .stride = 1}, {{Shape{2, 3, 1}}}, {.batch = 1});
  fill(harness.inputs[0], {1, 9, 1, 1, 1, 1});
  harness.forward();
  fill(harness.output_gradients[0], {10, 20});
  harness.backward();
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{0, 30, 0, 0, 0, 0}));
}

TEST(Pool2d, FirstOfEqualMaximaGetsTheGradient) {
  OpHarness harness(Pool2d{.kernel = 2}, {{Shape{2, 2, 1}}}, {.batch = 1});
  fill(harness.inputs[0], {0, 7, 7, 7});
  harness.forward();
  fill(harness.output_gradients[0], {1});
  harness.backward();
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{0, 1, 0, 0}));
}

TEST(Pool2d, MaximumShowsNaN) {
  OpHarness harness(Pool2d{.kernel = 2}, {{Shape{2, 4, 1}}}, {.batch = 1});
  const double nan = std::nan("");
  fill(harness.inputs[0], {nan, 1, 2, 3, 5, 6, nan, 4});
  harness.forward();
  EXPECT_TRUE(std::isnan(harness.outputs[0].as<float>()[0]));
  EXPECT_TRUE(std::isnan(harness.outputs[0].as<float>()[1]));
}

TEST(Pool2d, MaximumOfNegativeValuesIgnoresPadding) {
  OpHarness harness(Pool2d{.kernel = 2, .padding = 1}, {{Shape{2, 2, 1}}}, {.batch = 1});
  fill(harness.inputs[0], {-1, -2, -3, -4});
  harness.forward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{-1, -2, -3, -4}));
}

TEST(Pool2d, AverageDividesByTheElementsInTheImage) {
  OpHarness harness(Pool2d{.kind = PoolKind::average, .kernel = 3, .stride = 2, .padding = 1},
                    {{Shape{3, 3, 1}}}, {.batch = 1});
  fill(harness.inputs[0], {1, 2, 3, 4, 5, 6, 7, 8, 9});
  harness.forward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{3, 4, 6, 7}));
  fill(harness.output_gradients[0], {4, 8, 12, 16});
  harness.backward();
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{1, 3, 2, 4, 10, 6, 3, 7, 4}));
}

TEST(Pool2d, AverageThatCountsPaddingDividesByTheWholeWindow) {
  OpHarness harness(
      Pool2d{.kind = PoolKind::average, .kernel = 2, .stride = 2, .padding = 1, .count_include_pad = true},
      {{Shape{2, 3, 1}}}, {.batch = 1});
  fill(harness.inputs[0], {1, 2, 3, 4, 5, 6});
  harness.forward();
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{0.25, 1.25, 1, 2.75}));
  fill(harness.output_gradients[0], {4, 8, 12, 16});
  harness.backward();
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{1, 2, 2, 3, 4, 4}));
}

TEST(Pool2d, AgreesWithPyTorch) {
  expect_matches_golden(Pool2d{.kernel = 2}, read_golden("pool2d", "max_kernel2"));
  expect_matches_golden(Pool2d{.kernel = 3, .stride = 2, .padding = 1},
                        read_golden("pool2d", "max_kernel3_stride2_padding1"));
  expect_matches_golden(Pool2d{.kind = PoolKind::average, .kernel = 2},
                        read_golden("pool2d", "average_kernel2"));
  expect_matches_golden(Pool2d{.kind = PoolKind::average, .kernel = 3, .stride = 2, .padding = 1},
                        read_golden("pool2d", "average_kernel3_stride2_padding1"));
  expect_matches_golden(
      Pool2d{.kind = PoolKind::average, .kernel = 3, .stride = 2, .padding = 1, .count_include_pad = true},
      read_golden("pool2d", "average_kernel3_stride2_padding1_counted"));
}

TEST(Pool2d, OnlyTheMaximumKeepsItsPlaces) {
  const std::vector<TensorSpec> input{{Shape{6, 6, 3}}};
  const ops::OpSignature maximum = ops::infer(Pool2d{.kernel = 2}, input);
  ASSERT_EQ(maximum.auxiliary.size(), 1u);
  EXPECT_EQ(maximum.auxiliary[0].shape, (Shape{3, 3, 3}));
  EXPECT_EQ(maximum.auxiliary[0].dtype, DType::int32);
  EXPECT_TRUE(maximum.auxiliary[0].per_sample);
  EXPECT_TRUE(ops::infer(Pool2d{.kind = PoolKind::average, .kernel = 2}, input).auxiliary.empty());
}

TEST(Pool2d, RefusesWhatDoesNotFit) {
  const auto infer_with = [](Pool2d op, Shape shape) {
    ops::infer(op, std::vector<TensorSpec>{{std::move(shape)}});
  };
  expect_config_error(
      [&] {
        infer_with({.kernel = 3}, {2, 8, 1});
      },
      "pool2d: a kernel of 3 does not fit input [2, 8, 1] with padding 0");
  expect_config_error(
      [&] {
        infer_with({.kernel = 3, .padding = 2}, {8, 8, 1});
      },
      "pool2d: padding must be at most half the kernel of 3, is 2");
  expect_config_error(
      [&] {
        infer_with({.kernel = 3, .padding = 1, .count_include_pad = true}, {8, 8, 1});
      },
      "pool2d: count_include_pad");
  expect_config_error([&] { infer_with({.kernel = 0}, {8, 8, 1}); }, "pool2d: kernel must be positive, is 0");
  expect_config_error(
      [&] {
        infer_with({.kernel = 2, .stride = -1}, {8, 8, 1});
      },
      "pool2d: stride must not be negative, is -1");
  expect_config_error([&] { infer_with({.kernel = 2}, {8, 8}); }, "pool2d: input must be an image");
}

}  // namespace
}  // namespace lockstep::testing
