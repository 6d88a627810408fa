#include <gtest/gtest.h>
#include <omp.h>

#include "ops/op_cases.h"
#include "ops/op_expect.h"

namespace lockstep::testing {
namespace {

std::vector<Array> conv2d_reference(const Conv2d& op, const Array& x, const std::vector<Array>& parameters) {
  const int64_t batch = x.shape[0], height = x.shape[1], width = x.shape[2], in = x.shape[3];
  const int64_t of_group = in / op.groups;
  const auto size = [&](int64_t n) {
    return (n + 2 * op.padding - op.dilation * (op.kernel - 1) - 1) / op.stride + 1;
  };
  Array y{{batch, size(height), size(width), op.channels}, {}};
  for (int64_t n = 0; n < batch; ++n)
    for (int64_t row = 0; row < y.shape[1]; ++row)
      for (int64_t column = 0; column < y.shape[2]; ++column)
        for (int64_t channel = 0; channel < op.channels; ++channel) {
          double sum = op.bias ? parameters[1].values[channel] : 0;
          for (int64_t i = 0; i < op.kernel; ++i)
            for (int64_t j = 0; j < op.kernel; ++j) {
              const int64_t h = row * op.stride - op.padding + i * op.dilation;
              const int64_t w = column * op.stride - op.padding + j * op.dilation;
              if (h < 0 || h >= height || w < 0 || w >= width) continue;
              const int64_t first = channel / (op.channels / op.groups) * of_group;
              for (int64_t c = 0; c < of_group; ++c)
                sum += x.values[((n * height + h) * width + w) * in + first + c] *
                       parameters[0].values[((channel * op.kernel + i) * op.kernel + j) * of_group + c];
            }
          y.values.push_back(sum);
        }
  return {y};
}

OpCase make_conv2d(std::string name, Conv2d op, Shape input, int64_t batch = 2) {
  return {.name = std::move(name),
          .op = op,
          .inputs = {{std::move(input)}},
          .batch = batch,
          .reference = [op](const auto& inputs, const auto& parameters) {
            return conv2d_reference(op, inputs[0], parameters);
          }};
}

}  // namespace

template <>
std::vector<OpCase> cases_of<Conv2d>() {
  std::vector<OpCase> cases{
      make_conv2d("one_pixel", {.channels = 1, .kernel = 1}, {1, 1, 1}, 1),
      make_conv2d("kernel3_padding1", {.channels = 4, .kernel = 3, .padding = 1}, {5, 6, 3}),
      make_conv2d("kernel5_padding2_gray", {.channels = 6, .kernel = 5, .padding = 2}, {9, 9, 1}, 3),
      make_conv2d("kernel3_stride2_padding1", {.channels = 5, .kernel = 3, .stride = 2, .padding = 1},
                  {7, 6, 2}),
      make_conv2d("kernel1_stride2_no_bias", {.channels = 7, .kernel = 1, .stride = 2, .bias = false},
                  {5, 5, 3}),
      make_conv2d("kernel2_stride3_skips_pixels", {.channels = 2, .kernel = 2, .stride = 3}, {7, 8, 2}),
      make_conv2d("kernel_as_large_as_input", {.channels = 3, .kernel = 4}, {4, 4, 2}, 1),
      make_conv2d("channels_beyond_a_block", {.channels = 37, .kernel = 3, .padding = 1}, {4, 3, 19}),
      make_conv2d("channels_of_a_block", {.channels = 32, .kernel = 3, .padding = 1, .bias = false},
                  {4, 4, 16}),
      make_conv2d("groups2_kernel3_padding1", {.channels = 4, .kernel = 3, .padding = 1, .groups = 2},
                  {5, 6, 6}),
      make_conv2d("groups3_stride2_no_bias",
                  {.channels = 6, .kernel = 3, .stride = 2, .padding = 1, .bias = false, .groups = 3},
                  {7, 6, 3}),
      make_conv2d("groups2_beyond_a_block", {.channels = 40, .kernel = 3, .padding = 1, .groups = 2},
                  {4, 3, 36}),
      make_conv2d("groups4_kernel1", {.channels = 8, .kernel = 1, .groups = 4}, {3, 4, 16}, 3),
      make_conv2d("depthwise", {.channels = 5, .kernel = 3, .padding = 1, .groups = 5}, {6, 5, 5}),
      make_conv2d("depthwise_stride2_beyond_a_register",
                  {.channels = 19, .kernel = 3, .stride = 2, .padding = 1, .groups = 19}, {7, 6, 19}),
      make_conv2d("depthwise_two_units_each", {.channels = 6, .kernel = 3, .padding = 1, .groups = 3},
                  {5, 5, 3}),
      make_conv2d("dilation2_padding2", {.channels = 4, .kernel = 3, .padding = 2, .dilation = 2}, {7, 6, 3}),
      make_conv2d("dilation3_stride2", {.channels = 3, .kernel = 3, .stride = 2, .padding = 3, .dilation = 3},
                  {9, 10, 2}),
      make_conv2d("dilation2_stride4_skips_pixels",
                  {.channels = 3, .kernel = 2, .stride = 4, .padding = 1, .dilation = 2}, {9, 9, 2}),
      make_conv2d("groups2_dilation2_stride2",
                  {.channels = 4, .kernel = 3, .stride = 2, .padding = 2, .groups = 2, .dilation = 2},
                  {8, 8, 4}),
      make_conv2d("kernel7_stride2_padding3", {.channels = 8, .kernel = 7, .stride = 2, .padding = 3},
                  {11, 11, 3}, 1)};
  cases.push_back(make_conv2d("two_threads", {.channels = 16, .kernel = 3, .padding = 1}, {6, 6, 16}, 3));
  cases.back().options.intra_op_threads = 2;
  return cases;
}

namespace {

TEST(Conv2d, SlidesTheKernelWithoutTurningIt) {
  OpHarness harness(Conv2d{.channels = 1, .kernel = 2}, {{Shape{2, 3, 1}}}, {.batch = 1});
  fill(harness.inputs[0], {1, 2, 3, 4, 5, 6});
  fill(harness.parameters[0], {1, 10, 100, 1000});
  fill(harness.parameters[1], {0.5});
  harness.forward();
  EXPECT_EQ(harness.outputs[0].shape, (Shape{1, 1, 2, 1}));
  EXPECT_EQ(values_of(harness.outputs[0]), (std::vector<double>{5421.5, 6532.5}));

  fill(harness.output_gradients[0], {1, 2});
  harness.backward();
  EXPECT_EQ(values_of(harness.input_gradients[0]), (std::vector<double>{1, 12, 20, 100, 1200, 2000}));
  EXPECT_EQ(values_of(harness.parameter_gradients[0]), (std::vector<double>{5, 8, 14, 17}));
  EXPECT_EQ(values_of(harness.parameter_gradients[1]), (std::vector<double>{3}));
  harness.backward_weight(true);
  EXPECT_EQ(values_of(harness.parameter_gradients[0]), (std::vector<double>{10, 16, 28, 34}));
  EXPECT_EQ(values_of(harness.parameter_gradients[1]), (std::vector<double>{6}));
}

TEST(Conv2d, AgreesWithPyTorch) {
  expect_matches_golden(Conv2d{.channels = 2, .kernel = 3, .padding = 1},
                        read_golden("conv2d", "kernel3_padding1"));
  expect_matches_golden(Conv2d{.channels = 3, .kernel = 3, .stride = 2, .bias = false},
                        read_golden("conv2d", "kernel3_stride2_without_bias"));
  expect_matches_golden(Conv2d{.channels = 5, .kernel = 1}, read_golden("conv2d", "kernel1"));
  expect_matches_golden(Conv2d{.channels = 6, .kernel = 3, .padding = 1, .groups = 2},
                        read_golden("conv2d", "groups2"));
  expect_matches_golden(Conv2d{.channels = 3, .kernel = 3, .stride = 2, .padding = 1, .groups = 3},
                        read_golden("conv2d", "depthwise_stride2"));
  expect_matches_golden(Conv2d{.channels = 2, .kernel = 3, .padding = 2, .dilation = 2},
                        read_golden("conv2d", "dilation2"));
  expect_matches_golden(
      Conv2d{.channels = 4, .kernel = 3, .stride = 2, .padding = 3, .groups = 2, .dilation = 3},
      read_golden("conv2d", "groups2_dilation3_stride2"));
}

TEST(Conv2d, EvaluatesWithTheBitsOfTraining) {
  const OpCase c = make_conv2d("", {.channels = 6, .kernel = 5, .padding = 2}, {12, 12, 3});
  OpCase evaluation = c;
  evaluation.options.training = false;
  auto trained = make_harness(c), evaluated = make_harness(evaluation);
  trained->forward();
  evaluated->forward();
  EXPECT_EQ(values_of(evaluated->outputs[0]), values_of(trained->outputs[0]));
}

TEST(Conv2d, BitsFollowTheOptionAndNotTheCallingThread) {
  // A shape whose weight gradient was seen to have other bits on two threads than on one.
  const OpCase c = make_conv2d("", {.channels = 16, .kernel = 5}, {14, 14, 6}, 64);
  const int before = omp_get_max_threads();
  std::vector<std::vector<double>> gradients;
  for (const int threads_of_caller : {1, 2, 4}) {
    omp_set_num_threads(threads_of_caller);
    auto harness = make_harness(c);
    harness->forward();
    harness->backward();
    EXPECT_EQ(omp_get_max_threads(), threads_of_caller) << "the caller's own count is put back";
    gradients.push_back(values_of(harness->parameter_gradients[0]));
  }
  omp_set_num_threads(before);
  EXPECT_EQ(gradients[1], gradients[0]);
  EXPECT_EQ(gradients[2], gradients[0]);
}

TEST(Conv2d, TellsTheGraphItsShapesAndInitializer) {
  const ops::OpSignature signature = ops::infer(Conv2d{.channels = 8, .kernel = 2, .stride = 2, .padding = 1},
                                                std::vector<TensorSpec>{{Shape{28, 27, 4}}});
  EXPECT_EQ(signature.outputs[0].shape, (Shape{15, 14, 8}));
  EXPECT_EQ(signature.parameters[0].shape, (Shape{8, 2, 2, 4}));
  EXPECT_EQ(signature.parameters[1].shape, (Shape{8}));
  EXPECT_EQ(signature.parameters[0].init, (ops::Initializer{ops::Initializer::Kind::uniform, 0.25f}));
  EXPECT_EQ(signature.backward, ops::BackwardForm::split);
}

TEST(Conv2d, OfGroupsHasWeightsOfTheirChannels) {
  const ops::OpSignature signature = ops::infer(
      Conv2d{.channels = 6, .kernel = 3, .padding = 2, .groups = 3, .dilation = 2, .init_std = 0.5f},
      std::vector<TensorSpec>{{Shape{8, 8, 12}}});
  EXPECT_EQ(signature.outputs[0].shape, (Shape{8, 8, 6}));
  EXPECT_EQ(signature.parameters[0].shape, (Shape{6, 3, 3, 4}));
  EXPECT_EQ(signature.parameters[0].init, (ops::Initializer{ops::Initializer::Kind::normal, 0.5f}));
  EXPECT_EQ(signature.parameters[1].init, ops::Initializer{});
  const auto cost = ops::cost(Conv2d{.channels = 6, .kernel = 3, .padding = 1, .bias = false, .groups = 3},
                              std::vector<TensorSpec>{{Shape{8, 8, 12}}}, 2);
  EXPECT_EQ(cost.forward_flops, 2.0 * 2 * 64 * 6 * 9 * 4);
  EXPECT_EQ(cost.backward_weight_flops, cost.forward_flops);
}

TEST(Conv2d, RefusesWhatDoesNotFit) {
  const auto infer_with = [](Conv2d op, Shape shape) {
    ops::infer(op, std::vector<TensorSpec>{{std::move(shape)}});
  };
  expect_config_error(
      [&] {
        infer_with({.channels = 2, .kernel = 5}, {4, 9, 1});
      },
      "conv2d: a kernel of 5 does not fit input [4, 9, 1] with padding 0");
  expect_config_error([&] { infer_with({.channels = 2, .kernel = 3}, {784}); },
                      "conv2d: input must be an image [height, width, channels], has shape [784]");
  expect_config_error(
      [&] {
        infer_with({.channels = 0, .kernel = 3}, {4, 4, 1});
      },
      "channels must be positive, is 0");
  expect_config_error(
      [&] {
        infer_with({.channels = 2, .kernel = 0}, {4, 4, 1});
      },
      "kernel must be positive, is 0");
  expect_config_error(
      [&] {
        infer_with({.channels = 2, .kernel = 3, .stride = 0}, {4, 4, 1});
      },
      "stride must be positive, is 0");
  expect_config_error(
      [&] {
        infer_with({.channels = 2, .kernel = 3, .padding = -1}, {4, 4, 1});
      },
      "padding must not be negative, is -1");
  expect_config_error(
      [&] {
        infer_with({.channels = 6, .kernel = 3, .groups = 4}, {8, 8, 4});
      },
      "groups must divide the channels of input and output, but are 4 of input [8, 8, 4] and 6 channels");
  expect_config_error(
      [&] {
        infer_with({.channels = 6, .kernel = 3, .groups = 0}, {8, 8, 4});
      },
      "groups must be positive, is 0");
  expect_config_error(
      [&] {
        infer_with({.channels = 6, .kernel = 3, .dilation = 0}, {8, 8, 4});
      },
      "dilation must be positive, is 0");
  expect_config_error(
      [&] {
        infer_with({.channels = 6, .kernel = 3, .dilation = 4}, {8, 9, 4});
      },
      "a kernel of 3 with dilation 4, of 9 pixels, does not fit input [8, 9, 4] with padding 0");
  expect_config_error(
      [&] {
        infer_with({.channels = 6, .kernel = 3, .init_std = -1}, {8, 8, 4});
      },
      "init_std must not be negative");
}

TEST(Conv2d, CountsAMultiplyAddAsTwo) {
  const ops::OpCost c = ops::cost(Conv2d{.channels = 4, .kernel = 3, .bias = false},
                                  std::vector<TensorSpec>{{Shape{5, 6, 2}}}, 3);
  EXPECT_EQ(c.forward_flops, 2.0 * 3 * (3 * 4) * 4 * (3 * 3 * 2));
  EXPECT_EQ(c.forward_bytes, 4.0 * (3 * 60 + 3 * 48 + 72));
}

}  // namespace
}  // namespace lockstep::testing
