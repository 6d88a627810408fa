#include <algorithm>
#include <utility>
#include <vector>

#include "ops/attention_inputs.h"
#include "ops/checks.h"

namespace lockstep::ops {
namespace {

/// A mask and numbers of documents, in any order: both or one of them may be missing.
void check_optional_inputs(const Attention& op, Inputs inputs) {
  if (inputs.empty() || inputs.size() > 3)
    throw ConfigError(
        fmt::format("{}: takes queries, keys and values in one input, and perhaps a mask and documents, is "
                    "given {} inputs",
                    op.kName, inputs.size()));
  int masks = 0, documents = 0;
  for (const TensorSpec& input : inputs.subspan(1)) {
    const bool is_mask = input.dtype == DType::float32;
    if (!is_mask && input.dtype != DType::int32)
      throw ConfigError(
          fmt::format("{}: a further input must be a mask (float32) or documents (int32), is {} of shape {}",
                      op.kName, name_of(input.dtype), input.shape.to_string()));
    const char* const what = is_mask ? "mask" : "documents";
    if (++(is_mask ? masks : documents) > 1)
      throw ConfigError(fmt::format(
          "{}: two further inputs are {}; at most one can be a mask (float32) and one documents (int32)",
          op.kName, is_mask ? "masks" : "documents"));
    if (input.shape.rank() != 1 || input.shape[0] != inputs[0].shape[0])
      throw ConfigError(
          fmt::format("{}: {} of shape {} must have one number for each position of the input of shape {}",
                      op.kName, what, input.shape.to_string(), inputs[0].shape.to_string()));
  }
}

/// What a text that is being written can know: it is one document, but its mask is unknown.
PositionUse positions_of(const Attention& op, const AttentionInputs& given) {
  return op.causal && given.mask == 0 ? PositionUse::earlier : PositionUse::any;
}

}  // namespace

template <>
OpSignature infer_op(const Attention& op, Inputs inputs) {
  const Shape& shape = expect_float32_input(op.kName, inputs.first(std::min<size_t>(inputs.size(), 1)));
  expect_positive(op.kName, "heads", op.heads);
  if (shape.rank() != 2)
    throw ConfigError(
        fmt::format("{}: input must be [positions, channels], has shape {}", op.kName, shape.to_string()));
  check_optional_inputs(op, inputs);
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
  std::vector<bool> differentiable(inputs.size(), false);
  differentiable[0] = true;
  return {.outputs = {{{shape[0], shape[1] / all_heads * op.heads}, DType::float32}},
          .auxiliary = {{"log_sum_exp", {op.heads, shape[0]}}},
          .differentiable = std::move(differentiable),
          .backward_needs_input = std::vector<bool>(inputs.size(), true),
          .backward_needs_output = true,
          .cheap_to_repeat = true,
          .positions = positions_of(op, AttentionInputs(inputs))};
}

template <>
OpCost cost_op(const Attention& op, Inputs inputs, int64_t batch) {
  const double t = static_cast<double>(inputs[0].shape[0]);
  const auto input = static_cast<double>(inputs[0].shape[1]), heads = static_cast<double>(op.heads);
  const double key_heads = op.key_value_heads == 0 ? heads : static_cast<double>(op.key_value_heads);
  const double channels = input / (heads + 2 * key_heads) * heads;
  // Queries and the keys that they see, per head; at most, since what documents and masks hide is not known.
  const double pairs = (op.causal ? t * (t + 1) / 2 : t * t) * static_cast<double>(batch);
  const double exponentials = 22 * pairs * heads;
  const double positions = t * static_cast<double>(batch);
  const auto masks = static_cast<double>(inputs.size() - 1);  // a number for each position
  return {.forward_flops = 4 * pairs * channels + exponentials,
          .backward_input_flops = 10 * pairs * channels + exponentials,
          .forward_bytes = 4 * positions * (input + channels + masks),
          .backward_input_bytes = 8 * positions * (input + channels) + 4 * positions * masks};
}

}  // namespace lockstep::ops
