#pragma once

#include <fmt/format.h>

#include <string_view>

#include "lockstep/error.h"
#include "ops/parts.h"

namespace lockstep::ops {

// Checks of inputs for shape rules, with the same wording. All throw ConfigError.

inline void expect_input_count(std::string_view op, Inputs inputs, size_t count) {
  if (inputs.size() != count)
    throw ConfigError(
        fmt::format("{}: takes {} input{}, is given {}", op, count, count == 1 ? "" : "s", inputs.size()));
}

inline void expect_dtype(std::string_view op, std::string_view what, const TensorSpec& spec, DType dtype) {
  if (spec.dtype != dtype)
    throw ConfigError(fmt::format("{}: {} must be {}, is {} of shape {}", op, what, name_of(dtype),
                                  name_of(spec.dtype), spec.shape.to_string()));
}

inline void expect_positive(std::string_view op, std::string_view option, int64_t value) {
  if (value <= 0) throw ConfigError(fmt::format("{}: {} must be positive, is {}", op, option, value));
}

/// So written that NaN is refused.
inline void check_not_negative(std::string_view op, std::string_view option, float value) {
  if (!(value >= 0)) throw ConfigError(fmt::format("{}: {} must not be negative, is {}", op, option, value));
}

/// One float32 input of at least `rank` dimensions, none of which is empty.
inline const Shape& expect_float32_input(std::string_view op, Inputs inputs, int rank = 0) {
  expect_input_count(op, inputs, 1);
  expect_dtype(op, "input", inputs[0], DType::float32);
  const Shape& shape = inputs[0].shape;
  if (shape.rank() < rank)
    throw ConfigError(fmt::format("{}: input must have at least {} dimension{}, has shape {}", op, rank,
                                  rank == 1 ? "" : "s", shape.to_string()));
  for (const int64_t dim : shape.dims())
    if (dim <= 0) throw ConfigError(fmt::format("{}: input of shape {} is empty", op, shape.to_string()));
  return shape;
}

/// Two float32 inputs of one shape.
inline void expect_two_alike(std::string_view op, Inputs inputs) {
  expect_input_count(op, inputs, 2);
  expect_dtype(op, "first input", inputs[0], DType::float32);
  expect_dtype(op, "second input", inputs[1], DType::float32);
  if (inputs[0].shape != inputs[1].shape)
    throw ConfigError(fmt::format("{}: both inputs must have one shape, are {} and {}", op,
                                  inputs[0].shape.to_string(), inputs[1].shape.to_string()));
}

/// One float32 input of shape [H, W, C].
inline const Shape& expect_image_input(std::string_view op, Inputs inputs) {
  const Shape& shape = expect_float32_input(op, inputs);
  if (shape.rank() != 3)
    throw ConfigError(
        fmt::format("{}: input must be an image [height, width, channels], has shape {}; put a reshape "
                    "before it",
                    op, shape.to_string()));
  return shape;
}

/// A sequence [positions, channels] and, perhaps, a mask [positions]: both float32.
inline const Shape& expect_sequence_input(std::string_view op, Inputs inputs) {
  if (inputs.empty() || inputs.size() > 2)
    throw ConfigError(
        fmt::format("{}: takes a sequence and, perhaps, a mask, is given {} inputs", op, inputs.size()));
  const Shape& shape = expect_float32_input(op, inputs.first(1));
  if (shape.rank() != 2)
    throw ConfigError(
        fmt::format("{}: input must be [positions, channels], has shape {}", op, shape.to_string()));
  if (inputs.size() == 1) return shape;
  expect_dtype(op, "mask", inputs[1], DType::float32);
  if (inputs[1].shape != Shape{shape[0]})
    throw ConfigError(fmt::format("{}: the mask must have a number for each of {} positions, has shape {}",
                                  op, shape[0], inputs[1].shape.to_string()));
  return shape;
}

inline void expect_window(std::string_view op, int64_t kernel, int64_t stride, int64_t padding) {
  expect_positive(op, "kernel", kernel);
  expect_positive(op, "stride", stride);
  if (padding < 0) throw ConfigError(fmt::format("{}: padding must not be negative, is {}", op, padding));
}

/// (size + 2 padding - extent) / stride + 1 for both sides of an image, where the window's extent is
/// dilation (kernel - 1) + 1. REQUIRES: expect_window passed; dilation is positive.
inline Shape window_output(std::string_view op, const Shape& image, int64_t kernel, int64_t stride,
                           int64_t padding, int64_t channels, int64_t dilation = 1) {
  const int64_t extent = dilation * (kernel - 1) + 1;
  for (int axis = 0; axis < 2; ++axis)
    if (image[axis] + 2 * padding < extent)
      throw ConfigError(
          fmt::format("{}: a kernel of {}{} does not fit input {} with padding {}", op, kernel,
                      dilation == 1 ? "" : fmt::format(" with dilation {}, of {} pixels,", dilation, extent),
                      image.to_string(), padding));
  const auto size = [&](int64_t in) { return (in + 2 * padding - extent) / stride + 1; };
  return {size(image[0]), size(image[1]), channels};
}

}  // namespace lockstep::ops
