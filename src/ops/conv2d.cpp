#include <cmath>

#include "ops/checks.h"

namespace lockstep::ops {

namespace {

void expect_groups(const Conv2d& op, const Shape& image) {
  expect_positive(op.kName, "groups", op.groups);
  if (image[2] % op.groups != 0 || op.channels % op.groups != 0)
    throw ConfigError(fmt::format(
        "{}: groups must divide the channels of input and output, but are {} of input {} and {} channels",
        op.kName, op.groups, image.to_string(), op.channels));
}

Shape output_of(const Conv2d& op, const Shape& image) {
  return window_output(op.kName, image, op.kernel, op.stride, op.padding, op.channels, op.dilation);
}

}  // namespace

template <>
OpSignature infer_op(const Conv2d& op, Inputs inputs) {
  const Shape& image = expect_image_input(op.kName, inputs);
  expect_positive(op.kName, "channels", op.channels);
  expect_window(op.kName, op.kernel, op.stride, op.padding);
  expect_positive(op.kName, "dilation", op.dilation);
  expect_groups(op, image);
  check_not_negative(op.kName, "init_std", op.init_std);
  const int64_t in = image[2] / op.groups;
  const Initializer uniform{Initializer::Kind::uniform,
                            1.0f / std::sqrt(static_cast<float>(in * op.kernel * op.kernel))};
  const bool has_std = op.init_std > 0;
  OpSignature signature{
      .outputs = {{output_of(op, image)}},
      .parameters = {{.name = "weight",
                      .shape = {op.channels, op.kernel, op.kernel, in},
                      .init = has_std ? Initializer{Initializer::Kind::normal, op.init_std} : uniform,
                      .narrow = true}},
      .backward = BackwardForm::split,
      .differentiable = {true},
      .backward_needs_input = {true}};
  if (op.bias)
    signature.parameters.push_back({.name = "bias",
                                    .shape = {op.channels},
                                    .init = has_std ? Initializer{} : uniform,
                                    .is_norm_or_bias = true,
                                    .narrow = true});
  return signature;
}

template <>
OpCost cost_op(const Conv2d& op, Inputs inputs, int64_t batch) {
  const Shape& image = inputs[0].shape;
  const Shape output = output_of(op, image);
  const double n = static_cast<double>(batch);
  const double weight = static_cast<double>(op.channels * op.kernel * op.kernel * (image[2] / op.groups));
  const double out = n * static_cast<double>(output.count());
  const double product = 2 * n * static_cast<double>(output[0] * output[1]) * weight;
  const double traffic = 4 * (n * static_cast<double>(image.count()) + out + weight);
  const double bias_flops = op.bias ? out : 0,
               bias_bytes = op.bias ? 4 * static_cast<double>(op.channels) : 0;
  return {.forward_flops = product + bias_flops,
          .backward_input_flops = product,
          .backward_weight_flops = product + bias_flops,
          .forward_bytes = traffic + bias_bytes,
          .backward_input_bytes = traffic,
          .backward_weight_bytes = traffic + bias_bytes};
}

}  // namespace lockstep::ops
