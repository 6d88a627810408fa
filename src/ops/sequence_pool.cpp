#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const SequencePool& op, Inputs inputs) {
  const Shape& shape = expect_sequence_input(op.kName, inputs);
  if (op.kind == SequencePoolKind::ends && shape[1] % 2 != 0)
    throw ConfigError(fmt::format("{}: ENDS halves the channels, but there are {}", op.kName, shape[1]));
  OpSignature signature{
      .outputs = {{Shape{shape[1]}}}, .differentiable = {true}, .backward_needs_input = {false}};
  if (inputs.size() > 1) {
    signature.differentiable.push_back(false);
    signature.backward_needs_input.push_back(true);
  }
  return signature;
}

template <>
OpCost cost_op(const SequencePool& op, Inputs inputs, int64_t batch) {
  const double in = static_cast<double>(inputs[0].shape.count() * batch);
  const double out = static_cast<double>(inputs[0].shape[1] * batch);
  const bool is_mean = op.kind == SequencePoolKind::mean;
  return {.forward_flops = is_mean ? in : 0,
          .backward_input_flops = is_mean ? out : 0,
          .forward_bytes = 4 * ((is_mean ? in : out) + out),
          .backward_input_bytes = 4 * (in + out)};
}

}  // namespace lockstep::ops
