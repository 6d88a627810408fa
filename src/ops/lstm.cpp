#include <cmath>
#include <string>

#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const Lstm& op, Inputs inputs) {
  const Shape& shape = expect_sequence_input(op.kName, inputs);
  expect_positive(op.kName, "units", op.units);
  const int64_t positions = shape[0], width = shape[1], gates = 4 * op.units;
  const Initializer init{Initializer::Kind::uniform, 1.0f / std::sqrt(static_cast<float>(op.units))};
  const bool masked = inputs.size() > 1;
  OpSignature signature{.outputs = {{Shape{positions, op.bidirectional ? 2 * op.units : op.units}}},
                        .backward = BackwardForm::joint,
                        .differentiable = {true},
                        .backward_needs_input = {true},
                        .backward_needs_output = true,
                        // A mask of a text that is being written is not known.
                        .positions = op.bidirectional || masked ? PositionUse::any : PositionUse::previous};
  if (masked) {
    signature.differentiable.push_back(false);
    signature.backward_needs_input.push_back(true);
  }
  for (const std::string end : {"", "_reverse"}) {
    if (!end.empty() && !op.bidirectional) continue;
    const auto add = [&](const char* name, Shape parameter, bool is_weight) {
      signature.parameters.push_back({.name = name + end,
                                      .shape = std::move(parameter),
                                      .init = init,
                                      .is_norm_or_bias = !is_weight,
                                      .narrow = is_weight});
    };
    add("weight_ih", {gates, width}, true);
    add("weight_hh", {gates, op.units}, true);
    add("bias_ih", {gates}, false);
    add("bias_hh", {gates}, false);
    signature.auxiliary.push_back({"gates" + end, {positions, gates}});
    signature.auxiliary.push_back({"cells" + end, {positions, op.units}});
  }
  return signature;
}

template <>
OpCost cost_op(const Lstm& op, Inputs inputs, int64_t batch) {
  const double directions = op.bidirectional ? 2 : 1;
  const auto in = static_cast<double>(inputs[0].shape[1]), units = static_cast<double>(op.units);
  const double rows = static_cast<double>(inputs[0].shape[0]) * static_cast<double>(batch);
  const double weights = 4 * units * (in + units);
  const double product = 2 * rows * weights, of_units = 80 * rows * units;  // five exponentials
  // Inputs, and of each direction: weights; gates, cells and outputs.
  const double traffic = 4 * (rows * in + directions * (weights + 6 * rows * units));
  return {.forward_flops = directions * (product + of_units),
          .backward_input_flops = directions * (2 * product + of_units),
          .forward_bytes = traffic,
          .backward_input_bytes = 2 * traffic};
}

}  // namespace lockstep::ops
