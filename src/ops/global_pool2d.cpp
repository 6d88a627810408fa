#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const GlobalPool2d& op, Inputs inputs) {
  const Shape& image = expect_image_input(op.kName, inputs);
  return {.outputs = {{Shape{image[2]}}}, .differentiable = {true}, .backward_needs_input = {false}};
}

template <>
OpCost cost_op(const GlobalPool2d&, Inputs inputs, int64_t batch) {
  const double in = static_cast<double>(inputs[0].shape.count() * batch);
  const double out = static_cast<double>(inputs[0].shape[2] * batch);
  return {.forward_flops = in,
          .backward_input_flops = out,
          .forward_bytes = 4 * (in + out),
          .backward_input_bytes = 4 * (in + out)};
}

}  // namespace lockstep::ops
