#include <cmath>

#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const Linear& op, Inputs inputs) {
  const Shape& shape = expect_float32_input(op.kName, inputs, 1);
  expect_positive(op.kName, "units", op.units);
  if (!(op.init_std >= 0))  // so written that NaN is refused
    throw ConfigError(fmt::format("{}: init_std must not be negative, is {}", op.kName, op.init_std));
  const int64_t in = shape[-1];
  std::vector<int64_t> dims = shape.dims();
  dims.back() = op.units;
  const Initializer uniform{Initializer::Kind::uniform, 1.0f / std::sqrt(static_cast<float>(in))};
  const Initializer weight_init =
      op.init_std > 0 ? Initializer{Initializer::Kind::normal, op.init_std} : uniform;
  // A model that names its own deviation (GPT-2) starts its biases at zero.
  const Initializer bias_init = op.init_std > 0 ? Initializer{} : uniform;
  OpSignature signature{
      .outputs = {{Shape(std::move(dims))}},
      .parameters = {{.name = "weight", .shape = {op.units, in}, .init = weight_init, .narrow = true}},
      .backward = BackwardForm::split,
      .differentiable = {true},
      .backward_needs_input = {true},
      .positions = shape.rank() > 1 ? PositionUse::own : PositionUse::any};
  if (op.bias)
    signature.parameters.push_back(
        {.name = "bias", .shape = {op.units}, .init = bias_init, .is_norm_or_bias = true, .narrow = true});
  return signature;
}

template <>
OpCost cost_op(const Linear& op, Inputs inputs, int64_t batch) {
  const double in = static_cast<double>(inputs[0].shape[-1]), units = static_cast<double>(op.units);
  const double rows = static_cast<double>(inputs[0].shape.count()) / in * static_cast<double>(batch);
  const double bias = op.bias ? units : 0;
  const double product = 2 * rows * in * units, traffic = 4 * (rows * in + rows * units + in * units);
  return {.forward_flops = product + rows * bias,
          .backward_input_flops = product,
          .backward_weight_flops = product + rows * bias,
          .forward_bytes = traffic + 4 * bias,
          .backward_input_bytes = traffic,
          .backward_weight_bytes = traffic + 4 * bias};
}

}  // namespace lockstep::ops
