#include <cmath>

#include "ops/checks.h"

namespace lockstep::ops {
namespace {

/// Whether the op says itself what its weight begins at.
bool states_weight_init(const Linear& op) { return op.init_std > 0 || op.init_range > 0 || op.zero_weight; }

void check_init(const Linear& op) {
  check_not_negative(op.kName, "init_std", op.init_std);
  check_not_negative(op.kName, "init_range", op.init_range);
  check_not_negative(op.kName, "bias_init_std", op.bias_init_std);
  if ((op.init_std > 0) + (op.init_range > 0) + op.zero_weight > 1)
    throw ConfigError(fmt::format(
        "{}: init_std, init_range and zero_weight each say what the weight begins at; keep one of them",
        op.kName));
  if (op.bias_init_std > 0 && (!op.bias || !states_weight_init(op)))
    throw ConfigError(fmt::format(
        "{}: bias_init_std needs {}", op.kName,
        op.bias ? "init_std, init_range or zero_weight beside it" : "a bias, but bias is false; remove it"));
}

Initializer weight_init_of(const Linear& op, int64_t in) {
  using enum Initializer::Kind;
  if (op.zero_weight) return {};
  if (op.init_std > 0) return {normal, op.init_std};
  return {uniform, op.init_range > 0 ? op.init_range : 1.0f / std::sqrt(static_cast<float>(in))};
}

/// A model that names its weights' own deviation (GPT-2) starts its biases at zero.
Initializer bias_init_of(const Linear& op, const Initializer& weight_init) {
  if (op.bias_init_std > 0) return {Initializer::Kind::normal, op.bias_init_std};
  return states_weight_init(op) ? Initializer{} : weight_init;
}

}  // namespace

template <>
OpSignature infer_op(const Linear& op, Inputs inputs) {
  const Shape& shape = expect_float32_input(op.kName, inputs, 1);
  expect_positive(op.kName, "units", op.units);
  check_init(op);
  const int64_t in = shape[-1];
  std::vector<int64_t> dims = shape.dims();
  dims.back() = op.units;
  const Initializer weight_init = weight_init_of(op, in);
  OpSignature signature{
      .outputs = {{Shape(std::move(dims))}},
      .parameters = {{.name = "weight", .shape = {op.units, in}, .init = weight_init, .narrow = true}},
      .backward = BackwardForm::split,
      .differentiable = {true},
      .backward_needs_input = {true},
      .positions = shape.rank() > 1 ? PositionUse::own : PositionUse::any};
  if (op.bias)
    signature.parameters.push_back({.name = "bias",
                                    .shape = {op.units},
                                    .init = bias_init_of(op, weight_init),
                                    .is_norm_or_bias = true,
                                    .narrow = true});
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
