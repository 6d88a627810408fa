#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const Multiply& op, Inputs inputs) {
  expect_two_alike(op.kName, inputs);
  return {.outputs = {inputs[0]},
          .differentiable = {true, true},
          .backward_needs_input = {true, true},
          .cheap_to_repeat = true,
          .positions = PositionUse::own};
}

template <>
OpCost cost_op(const Multiply&, Inputs inputs, int64_t batch) {
  const double count = static_cast<double>(inputs[0].shape.count()) * static_cast<double>(batch);
  return {.forward_flops = count,
          .backward_input_flops = 2 * count,
          .forward_bytes = 12 * count,
          .backward_input_bytes = 20 * count};
}

}  // namespace lockstep::ops
