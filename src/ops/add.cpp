#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const Add& op, Inputs inputs) {
  expect_input_count(op.kName, inputs, 2);
  expect_dtype(op.kName, "first input", inputs[0], DType::float32);
  expect_dtype(op.kName, "second input", inputs[1], DType::float32);
  if (inputs[0].shape != inputs[1].shape)
    throw ConfigError(fmt::format("{}: both inputs must have one shape, are {} and {}", op.kName,
                                  inputs[0].shape.to_string(), inputs[1].shape.to_string()));
  return {.outputs = {inputs[0]},
          .differentiable = {true, true},
          .backward_needs_input = {false, false},
          .passes_gradient = true};
}

template <>
OpCost cost_op(const Add&, Inputs inputs, int64_t batch) {
  const double count = static_cast<double>(inputs[0].shape.count()) * static_cast<double>(batch);
  return {.forward_flops = count, .forward_bytes = 12 * count};
}

}  // namespace lockstep::ops
