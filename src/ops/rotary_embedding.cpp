#include <cmath>

#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const RotaryEmbedding& op, Inputs inputs) {
  const Shape& shape = expect_float32_input(op.kName, inputs);
  expect_positive(op.kName, "head_size", op.head_size);
  if (op.head_size % 2 != 0)
    throw ConfigError(fmt::format("{}: head_size must be even, is {}", op.kName, op.head_size));
  if (shape.rank() != 2 || shape[1] % op.head_size != 0)
    throw ConfigError(fmt::format("{}: input must be [positions, a multiple of head_size = {}], has shape {}",
                                  op.kName, op.head_size, shape.to_string()));
  if (op.heads < 0 || op.heads > shape[1] / op.head_size)
    throw ConfigError(fmt::format("{}: heads must be from 0 to the input's {}, is {}", op.kName,
                                  shape[1] / op.head_size, op.heads));
  if (!(op.theta > 0) || !std::isfinite(op.theta))  // so written that NaN is refused
    throw ConfigError(fmt::format("{}: theta must be positive, is {}", op.kName, op.theta));
  if (!(op.scaling_factor >= 0) || !std::isfinite(op.scaling_factor))
    throw ConfigError(fmt::format("{}: scaling_factor must be positive, is {}", op.kName, op.scaling_factor));
  if (op.scaling_factor > 0) {
    if (!(op.low_frequency_factor < op.high_frequency_factor) || !std::isfinite(op.low_frequency_factor) ||
        !std::isfinite(op.high_frequency_factor))
      throw ConfigError(
          fmt::format("{}: low_frequency_factor must be below high_frequency_factor, but they are {} and {}",
                      op.kName, op.low_frequency_factor, op.high_frequency_factor));
    expect_positive(op.kName, "original_positions", op.original_positions);
  }
  return {.outputs = {inputs[0]},
          .differentiable = {true},
          .backward_needs_input = {false},
          .positions = PositionUse::place};
}

template <>
OpCost cost_op(const RotaryEmbedding&, Inputs inputs, int64_t batch) {
  const double count = static_cast<double>(inputs[0].shape.count()) * static_cast<double>(batch);
  return {.forward_flops = 3 * count,
          .backward_input_flops = 3 * count,
          .forward_bytes = 8 * count,
          .backward_input_bytes = 8 * count};
}

}  // namespace lockstep::ops
