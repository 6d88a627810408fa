#include "ops/checks.h"
#include "ops/elementwise.h"

namespace lockstep::ops {
namespace {

template <class Formula>
OpSignature infer_activation(std::string_view name, Inputs inputs) {
  expect_float32_input(name, inputs);
  const bool reads_output = Formula::kBackwardReads == ForwardValue::output;
  return {.outputs = {inputs[0]},
          .differentiable = {true},
          .backward_needs_input = {!reads_output},
          .backward_needs_output = reads_output,
          .elementwise = true,
          .positions = PositionUse::own};
}

OpCost activation_cost(Inputs inputs, int64_t batch, double forward_flops, double backward_flops) {
  const double count = static_cast<double>(inputs[0].shape.count()) * static_cast<double>(batch);
  return {.forward_flops = forward_flops * count,
          .backward_input_flops = backward_flops * count,
          .forward_bytes = 8 * count,
          .backward_input_bytes = 12 * count};
}

}  // namespace

template <>
OpSignature infer_op(const Relu& op, Inputs inputs) {
  return infer_activation<ReluFormula>(op.kName, inputs);
}
template <>
OpSignature infer_op(const Gelu& op, Inputs inputs) {
  OpSignature signature = op.kind == GeluKind::tanh ? infer_activation<GeluFormula>(op.kName, inputs)
                                                    : infer_activation<GeluErfFormula>(op.kName, inputs);
  signature.cheap_to_repeat = true;
  return signature;
}
template <>
OpSignature infer_op(const Silu& op, Inputs inputs) {
  OpSignature signature = infer_activation<SiluFormula>(op.kName, inputs);
  signature.cheap_to_repeat = true;
  return signature;
}
template <>
OpSignature infer_op(const Sigmoid& op, Inputs inputs) {
  return infer_activation<SigmoidFormula>(op.kName, inputs);
}
template <>
OpSignature infer_op(const Tanh& op, Inputs inputs) {
  return infer_activation<TanhFormula>(op.kName, inputs);
}

// Operations as elementwise.h counts them; an exponential is about 20.
template <>
OpCost cost_op(const Relu&, Inputs inputs, int64_t batch) {
  return activation_cost(inputs, batch, 1, 1);
}
template <>
OpCost cost_op(const Gelu& op, Inputs inputs, int64_t batch) {
  return op.kind == GeluKind::tanh ? activation_cost(inputs, batch, 27, 38)
                                   : activation_cost(inputs, batch, 48, 52);
}
template <>
OpCost cost_op(const Silu&, Inputs inputs, int64_t batch) {
  return activation_cost(inputs, batch, 22, 27);
}
template <>
OpCost cost_op(const Sigmoid&, Inputs inputs, int64_t batch) {
  return activation_cost(inputs, batch, 22, 3);
}
template <>
OpCost cost_op(const Tanh&, Inputs inputs, int64_t batch) {
  return activation_cost(inputs, batch, 24, 3);
}

}  // namespace lockstep::ops
