#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const MeanSquaredError& op, Inputs inputs) {
  expect_input_count(op.kName, inputs, 2);
  expect_dtype(op.kName, "prediction", inputs[0], DType::float32);
  expect_dtype(op.kName, "target", inputs[1], DType::float32);
  if (inputs[0].shape != inputs[1].shape)
    throw ConfigError(fmt::format("{}: prediction and target must have one shape, are {} and {}", op.kName,
                                  inputs[0].shape.to_string(), inputs[1].shape.to_string()));
  if (inputs[0].shape.count() == 0)
    throw ConfigError(
        fmt::format("{}: prediction of shape {} is empty", op.kName, inputs[0].shape.to_string()));
  return {.differentiable = {true, false}, .backward_needs_input = {true, true}, .is_loss = true};
}

template <>
OpCost cost_op(const MeanSquaredError&, Inputs inputs, int64_t batch) {
  const double count = static_cast<double>(inputs[0].shape.count() * batch);
  return {.forward_flops = 3 * count,
          .backward_input_flops = 2 * count,
          .forward_bytes = 8 * count,
          .backward_input_bytes = 12 * count};
}

}  // namespace lockstep::ops
