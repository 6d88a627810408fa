#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const SoftmaxCrossEntropy& op, Inputs inputs) {
  const bool mixes = inputs.size() == 3;
  if (!mixes) expect_input_count(op.kName, inputs, 2);
  if (!(op.label_smoothing >= 0 && op.label_smoothing <= 1))
    throw ConfigError(
        fmt::format("{}: label_smoothing must be from 0 to 1, is {}", op.kName, op.label_smoothing));
  expect_dtype(op.kName, "logits", inputs[0], DType::float32);
  expect_dtype(op.kName, "labels", inputs[1], DType::int32);
  const Shape& logits = inputs[0].shape;
  const Shape& labels = inputs[1].shape;
  if (logits.rank() < 1 || logits.count() == 0)
    throw ConfigError(fmt::format("{}: logits must be [..., classes] and not empty, have shape {}", op.kName,
                                  logits.to_string()));
  const Shape positions(std::vector<int64_t>(logits.dims().begin(), logits.dims().end() - 1));
  if (labels != positions)
    throw ConfigError(fmt::format("{}: labels for logits of shape {} must have shape {}, have {}", op.kName,
                                  logits.to_string(), positions.to_string(), labels.to_string()));
  if (mixes) {
    expect_dtype(op.kName, "mixtures", inputs[2], DType::int32);
    std::vector<int64_t> pairs = positions.dims();
    pairs.push_back(2);
    if (inputs[2].shape != Shape(pairs))
      throw ConfigError(
          fmt::format("{}: mixtures for logits of shape {} must have shape {}, a class and its "
                      "share, have {}",
                      op.kName, logits.to_string(), Shape(pairs).to_string(), inputs[2].shape.to_string()));
  }
  std::vector<bool> differentiable(inputs.size(), false);
  differentiable[0] = true;
  return {.auxiliary = {{"log_sum_exp", positions}},
          .differentiable = differentiable,
          .backward_needs_input = std::vector<bool>(inputs.size(), true),
          .is_loss = true};
}

template <>
OpCost cost_op(const SoftmaxCrossEntropy&, Inputs inputs, int64_t batch) {
  const double count = static_cast<double>(inputs[0].shape.count()) * static_cast<double>(batch);
  return {.forward_flops = 22 * count,
          .backward_input_flops = 22 * count,
          .forward_bytes = 4 * count,
          .backward_input_bytes = 8 * count};
}

}  // namespace lockstep::ops
