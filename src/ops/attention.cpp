#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const Attention& op, Inputs inputs) {
  const Shape& shape = expect_float32_input(op.kName, inputs);
  expect_positive(op.kName, "heads", op.heads);
  if (shape.rank() != 2)
    throw ConfigError(fmt::format("{}: input must be [positions, 3 * channels], has shape {}", op.kName,
                                  shape.to_string()));
  if (shape[1] % (3 * op.heads) != 0)
    throw ConfigError(
        fmt::format("{}: the input's {} channels must be a multiple of 3 * heads = {}: query, key and "
                    "value of each head side by side",
                    op.kName, shape[1], 3 * op.heads));
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
  return {.outputs = {{{shape[0], shape[1] / 3}, DType::float32}},
          .auxiliary = {{"log_sum_exp", {op.heads, shape[0]}}},
          .differentiable = {true},
          .backward_needs_input = {true},
          .backward_needs_output = true,
          .cheap_to_repeat = true};
}

template <>
OpCost cost_op(const Attention& op, Inputs inputs, int64_t batch) {
  const double t = static_cast<double>(inputs[0].shape[0]);
  const double channels = static_cast<double>(inputs[0].shape[1]) / 3;
  const double pairs =
      t * (t + 1) / 2 * static_cast<double>(batch);  // queries and the keys that they see, per head
  const double exponentials = 22 * pairs * static_cast<double>(op.heads);
  const double activations = t * channels * static_cast<double>(batch);
  return {.forward_flops = 4 * pairs * channels + exponentials,
          .backward_input_flops = 10 * pairs * channels + exponentials,
          .forward_bytes = 16 * activations,
          .backward_input_bytes = 32 * activations};
}

}  // namespace lockstep::ops
