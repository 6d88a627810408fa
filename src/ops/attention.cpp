#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const Attention& op, Inputs inputs) {
  const Shape& shape = expect_float32_input(op.kName, inputs);
  expect_positive(op.kName, "heads", op.heads);
  if (shape.rank() != 2)
    throw ConfigError(
        fmt::format("{}: input must be [positions, channels], has shape {}", op.kName, shape.to_string()));
  const int64_t key_heads = op.key_value_heads == 0 ? op.heads : op.key_value_heads;
  if (key_heads < 0 || op.heads % key_heads != 0)
    throw ConfigError(fmt::format("{}: key_value_heads must divide heads, is {} with {} heads", op.kName,
                                  op.key_value_heads, op.heads));
  const int64_t all_heads = op.heads + 2 * key_heads;
  if (shape[1] % all_heads != 0)
    throw ConfigError(
        fmt::format("{}: the input's {} channels must be a multiple of heads + 2 * key_value_heads = {}: "
                    "queries, keys and values side by side",
                    op.kName, shape[1], all_heads));
  if (!(op.dropout >= 0 && op.dropout < 1))  // so written that NaN is refused
    throw ConfigError(fmt::format("{}: dropout must be in [0, 1), is {}", op.kName, op.dropout));
  // Four weights share one number of the random stream, which counts to 2^32.
  if (op.dropout > 0 && static_cast<double>(op.heads) * static_cast<double>(shape[0]) *
                                static_cast<double>((shape[0] + 3) / 4) >
                            0x1p32)
    throw ConfigError(
        fmt::format("{}: {} heads of {} positions have more weights than one dropout stream has numbers; "
                    "set dropout to 0",
                    op.kName, op.heads, shape[0]));
  return {.outputs = {{{shape[0], shape[1] / all_heads * op.heads}, DType::float32}},
          .auxiliary = {{"log_sum_exp", {op.heads, shape[0]}}},
          .differentiable = {true},
          .backward_needs_input = {true},
          .backward_needs_output = true,
          .cheap_to_repeat = true,
          .positions = op.causal ? PositionUse::earlier : PositionUse::any};
}

template <>
OpCost cost_op(const Attention& op, Inputs inputs, int64_t batch) {
  const double t = static_cast<double>(inputs[0].shape[0]);
  const auto input = static_cast<double>(inputs[0].shape[1]), heads = static_cast<double>(op.heads);
  const double key_heads = op.key_value_heads == 0 ? heads : static_cast<double>(op.key_value_heads);
  const double channels = input / (heads + 2 * key_heads) * heads;
  // Queries and the keys that they see, per head.
  const double pairs = (op.causal ? t * (t + 1) / 2 : t * t) * static_cast<double>(batch);
  const double exponentials = 22 * pairs * heads;
  const double positions = t * static_cast<double>(batch);
  return {.forward_flops = 4 * pairs * channels + exponentials,
          .backward_input_flops = 10 * pairs * channels + exponentials,
          .forward_bytes = 4 * positions * (input + channels),
          .backward_input_bytes = 8 * positions * (input + channels)};
}

}  // namespace lockstep::ops
