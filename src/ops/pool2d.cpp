#include "ops/pool2d.h"

#include <limits>

#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const Pool2d& op, Inputs inputs) {
  const Shape& image = expect_image_input(op.kName, inputs);
  if (op.stride < 0)
    throw ConfigError(fmt::format("{}: stride must not be negative, is {}", op.kName, op.stride));
  expect_window(op.kName, op.kernel, pool_stride(op), op.padding);
  // Otherwise a window could lie in the padding alone and have no maximum.
  if (2 * op.padding > op.kernel)
    throw ConfigError(fmt::format("{}: padding must be at most half the kernel of {}, is {}", op.kName,
                                  op.kernel, op.padding));
  if (op.count_include_pad && op.kind == PoolKind::max)
    throw ConfigError(fmt::format(
        "{}: count_include_pad applies only to averages, since padding is never a maximum; remove it",
        op.kName));
  if (image[0] * image[1] > std::numeric_limits<int32_t>::max())
    throw ConfigError(
        fmt::format("{}: input {} has more pixels than 32 bits count", op.kName, image.to_string()));
  const Shape output = window_output(op.kName, image, op.kernel, pool_stride(op), op.padding, image[2]);
  OpSignature signature{.outputs = {{output}}, .differentiable = {true}, .backward_needs_input = {false}};
  if (op.kind == PoolKind::max) signature.auxiliary.push_back({"argmax", output, DType::int32});
  return signature;
}

template <>
OpCost cost_op(const Pool2d& op, Inputs inputs, int64_t batch) {
  const Shape& image = inputs[0].shape;
  const Shape output = window_output(op.kName, image, op.kernel, pool_stride(op), op.padding, image[2]);
  const double in = static_cast<double>(image.count() * batch),
               out = static_cast<double>(output.count() * batch);
  const double window = static_cast<double>(op.kernel * op.kernel);
  const double argmax_bytes = op.kind == PoolKind::max ? 4 * out : 0;
  return {.forward_flops = out * window,
          .backward_input_flops = op.kind == PoolKind::max ? out : out * window,
          .forward_bytes = 4 * (in + out) + argmax_bytes,
          .backward_input_bytes = 4 * (in + out) + argmax_bytes};
}

PoolGeometry::PoolGeometry(const Pool2d& op, const Shape& image)
    : height(image[0]),
      width(image[1]),
      channels(image[2]),
      kernel(op.kernel),
      stride(pool_stride(op)),
      padding(op.padding),
      count_include_pad(op.count_include_pad) {
  const Shape output = window_output(op.kName, image, kernel, stride, padding, channels);
  out_height = output[0];
  out_width = output[1];
}

}  // namespace lockstep::ops
