#include "ops/upsample2d.h"

#include <cmath>

#include "ops/checks.h"

namespace lockstep::ops {
namespace {

// Places are counted in float32, which holds every whole number up to here.
constexpr int64_t kMostPixels = int64_t{1} << 24;

/// Pixels of a side of the output. PyTorch multiplies in double precision, and so do we.
int64_t scaled(int64_t size, double scale) {
  return static_cast<int64_t>(std::floor(static_cast<double>(size) * scale));
}

Shape output_of(const Upsample2d& op, const Shape& image) {
  if (op.scale == 0) return {op.height, op.width, image[2]};
  return {scaled(image[0], op.scale), scaled(image[1], op.scale), image[2]};
}

UpsampleAxis axis_of(const Upsample2d& op, int64_t in, int64_t out) {
  UpsampleAxis axis{.in = static_cast<int>(in),
                    .out = static_cast<int>(out),
                    .ratio = 0,
                    .kind = op.kind,
                    .align_corners = op.align_corners};
  if (op.align_corners)
    axis.ratio = out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0.0f;
  else if (op.scale == 0)
    axis.ratio = static_cast<float>(in) / static_cast<float>(out);
  else
    axis.ratio = static_cast<float>(1.0 / op.scale);
  return axis;
}

}  // namespace

template <>
OpSignature infer_op(const Upsample2d& op, Inputs inputs) {
  const Shape& image = expect_image_input(op.kName, inputs);
  if (!(op.scale >= 0) || !std::isfinite(op.scale))  // so written that NaN is refused
    throw ConfigError(fmt::format("{}: scale must be positive, is {}", op.kName, op.scale));
  if (op.height < 0 || op.width < 0)
    throw ConfigError(
        fmt::format("{}: height and width must be positive, are {} and {}", op.kName, op.height, op.width));
  if ((op.scale == 0) != (op.height > 0 && op.width > 0) || (op.height > 0) != (op.width > 0))
    throw ConfigError(
        fmt::format("{}: needs either scale, or height and width; scale is {}, height {}, width {}", op.kName,
                    op.scale, op.height, op.width));
  if (op.kind == UpsampleKind::nearest && op.align_corners)
    throw ConfigError(fmt::format(
        "{}: align_corners applies only to kind: BILINEAR, since nearest pixels are copied; remove it",
        op.kName));
  const double most = static_cast<double>(kMostPixels);
  for (int axis = 0; axis < 2; ++axis)
    if (image[axis] > kMostPixels || static_cast<double>(image[axis]) * op.scale > most ||
        op.height > kMostPixels || op.width > kMostPixels)
      throw ConfigError(fmt::format("{}: a side of an image has at most {} pixels; the input is {}", op.kName,
                                    kMostPixels, image.to_string()));
  const Shape output = output_of(op, image);
  if (output[0] == 0 || output[1] == 0)
    throw ConfigError(
        fmt::format("{}: scale {} leaves nothing of input {}", op.kName, op.scale, image.to_string()));
  return {.outputs = {{output}}, .differentiable = {true}, .backward_needs_input = {false}};
}

template <>
OpCost cost_op(const Upsample2d& op, Inputs inputs, int64_t batch) {
  const Shape& image = inputs[0].shape;
  const double in = static_cast<double>(image.count() * batch),
               out = static_cast<double>(output_of(op, image).count() * batch);
  const double flops = op.kind == UpsampleKind::nearest ? 0 : 6;  // of an element of the output
  return {.forward_flops = flops * out,
          .backward_input_flops = (op.kind == UpsampleKind::nearest ? 1 : flops) * out,
          .forward_bytes = 4 * (in + out),
          .backward_input_bytes = 4 * (in + out)};
}

UpsampleGeometry::UpsampleGeometry(const Upsample2d& op, const Shape& image) : channels(image[2]) {
  const Shape output = output_of(op, image);
  rows = axis_of(op, image[0], output[0]);
  columns = axis_of(op, image[1], output[1]);
}

}  // namespace lockstep::ops
