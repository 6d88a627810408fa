#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const LayerNorm& op, Inputs inputs) {
  const Shape& shape = expect_float32_input(op.kName, inputs, 1);
  if (!(op.epsilon > 0))  // so written that NaN is refused
    throw ConfigError(fmt::format("{}: epsilon must be positive, is {}", op.kName, op.epsilon));
  const Shape rows(std::vector<int64_t>(shape.dims().begin(), shape.dims().end() - 1));
  OpSignature signature{
      .outputs = {inputs[0]},
      .parameters = {{"weight", {shape[-1]}, {Initializer::Kind::one}, ParameterRole::weight, true}},
      .auxiliary = {{"mean", rows}, {"inverse_deviation", rows}},
      .backward = BackwardForm::joint,
      .differentiable = {true},
      .backward_needs_input = {true}};
  if (op.bias)
    signature.parameters.push_back(
        {"bias", {shape[-1]}, {Initializer::Kind::zero}, ParameterRole::weight, true});
  return signature;
}

template <>
OpCost cost_op(const LayerNorm&, Inputs inputs, int64_t batch) {
  const double count = static_cast<double>(inputs[0].shape.count()) * static_cast<double>(batch);
  return {.forward_flops = 8 * count,
          .backward_input_flops = 16 * count,
          .forward_bytes = 8 * count,
          .backward_input_bytes = 12 * count};
}

}  // namespace lockstep::ops
