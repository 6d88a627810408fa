#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const Add& op, Inputs inputs) {
  expect_two_alike(op.kName, inputs);
  return {.outputs = {inputs[0]},
          .differentiable = {true, true},
          .backward_needs_input = {false, false},
          .passes_gradient = true,
          .positions = PositionUse::own};
}

template <>
OpCost cost_op(const Add&, Inputs inputs, int64_t batch) {
  const double count = static_cast<double>(inputs[0].shape.count()) * static_cast<double>(batch);
  return {.forward_flops = count, .forward_bytes = 12 * count};
}

}  // namespace lockstep::ops
