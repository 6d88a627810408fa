#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const PrependToken& op, Inputs inputs) {
  const Shape& shape = expect_float32_input(op.kName, inputs);
  if (shape.rank() != 2)
    throw ConfigError(
        fmt::format("{}: input must be [positions, channels], has shape {}", op.kName, shape.to_string()));
  check_not_negative(op.kName, "init_std", op.init_std);
  const Initializer init =
      op.init_std > 0 ? Initializer{Initializer::Kind::normal, op.init_std} : Initializer{};
  return {.outputs = {{Shape{shape[0] + 1, shape[1]}}},
          .parameters = {{.name = "weight", .shape = {1, shape[1]}, .init = init, .narrow = true}},
          .backward = BackwardForm::split,
          .differentiable = {true},
          .backward_needs_input = {false}};
}

template <>
OpCost cost_op(const PrependToken&, Inputs inputs, int64_t batch) {
  const double in = static_cast<double>(inputs[0].shape.count() * batch);
  const double tokens = static_cast<double>(inputs[0].shape[1] * batch);
  return {.backward_weight_flops = tokens,
          .forward_bytes = 4 * (2 * in + 2 * tokens),
          .backward_input_bytes = 8 * in,
          .backward_weight_bytes = 4 * tokens};
}

}  // namespace lockstep::ops
