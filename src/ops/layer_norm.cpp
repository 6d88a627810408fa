#include "ops/checks.h"

// Layer norm and RMS norm.

namespace lockstep::ops {
namespace {

/// Without bias, which layer norms may have, and without the means of rows.
OpSignature infer_norm(std::string_view name, float epsilon, Inputs inputs) {
  const Shape& shape = expect_float32_input(name, inputs, 1);
  if (!(epsilon > 0))  // so written that NaN is refused
    throw ConfigError(fmt::format("{}: epsilon must be positive, is {}", name, epsilon));
  const Shape rows(std::vector<int64_t>(shape.dims().begin(), shape.dims().end() - 1));
  return {.outputs = {inputs[0]},
          .parameters = {{"weight", {shape[-1]}, {Initializer::Kind::one}, ParameterRole::weight, true}},
          .auxiliary = {{"inverse_deviation", rows}},
          .backward = BackwardForm::joint,
          .differentiable = {true},
          .backward_needs_input = {true},
          .positions = shape.rank() > 1 ? PositionUse::own : PositionUse::any};
}

OpCost norm_cost(Inputs inputs, int64_t batch, double forward_flops, double backward_flops) {
  const double count = static_cast<double>(inputs[0].shape.count()) * static_cast<double>(batch);
  return {.forward_flops = forward_flops * count,
          .backward_input_flops = backward_flops * count,
          .forward_bytes = 8 * count,
          .backward_input_bytes = 12 * count};
}

}  // namespace

template <>
OpSignature infer_op(const LayerNorm& op, Inputs inputs) {
  OpSignature signature = infer_norm(op.kName, op.epsilon, inputs);
  signature.auxiliary.insert(signature.auxiliary.begin(), {"mean", signature.auxiliary[0].shape});
  const Shape& shape = inputs[0].shape;
  if (op.bias)
    signature.parameters.push_back(
        {"bias", {shape[-1]}, {Initializer::Kind::zero}, ParameterRole::weight, true});
  return signature;
}

template <>
OpCost cost_op(const LayerNorm&, Inputs inputs, int64_t batch) {
  return norm_cost(inputs, batch, 8, 16);
}

template <>
OpSignature infer_op(const RmsNorm& op, Inputs inputs) {
  return infer_norm(op.kName, op.epsilon, inputs);
}

template <>
OpCost cost_op(const RmsNorm&, Inputs inputs, int64_t batch) {
  return norm_cost(inputs, batch, 4, 11);
}

}  // namespace lockstep::ops
