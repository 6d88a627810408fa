#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const Dropout& op, Inputs inputs) {
  expect_float32_input(op.kName, inputs);
  if (!(op.rate >= 0 && op.rate < 1))  // so written that NaN is refused
    throw ConfigError(fmt::format("{}: rate must be in [0, 1), is {}", op.kName, op.rate));
  return {.outputs = {inputs[0]},
          .differentiable = {true},
          .backward_needs_input = {false},
          .elementwise = true,
          .positions = PositionUse::own};
}

template <>
OpCost cost_op(const Dropout&, Inputs inputs, int64_t batch) {
  const double count = static_cast<double>(inputs[0].shape.count()) * static_cast<double>(batch);
  constexpr double kPhiloxFlops = 25;  // ten rounds of about ten integer operations for four elements
  return {.forward_flops = kPhiloxFlops * count,
          .backward_input_flops = kPhiloxFlops * count,
          .forward_bytes = 8 * count,
          .backward_input_bytes = 8 * count};
}

}  // namespace lockstep::ops
