#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const Fork& op, Inputs inputs) {
  expect_input_count(op.kName, inputs, 1);
  return {.outputs = {inputs[0], inputs[0]},
          .differentiable = {inputs[0].dtype == DType::float32},
          .backward_needs_input = {false},
          .alias = true,
          .positions = PositionUse::own};
}

template <>
OpCost cost_op(const Fork&, Inputs inputs, int64_t batch) {
  if (inputs[0].dtype != DType::float32) return {};
  const double count = static_cast<double>(inputs[0].shape.count()) * static_cast<double>(batch);
  return {.backward_input_flops = count, .backward_input_bytes = 12 * count};
}

}  // namespace lockstep::ops
