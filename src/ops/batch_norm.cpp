#include "ops/batch_norm.h"

#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const BatchNorm& op, Inputs inputs) {
  const Shape& shape = expect_float32_input(op.kName, inputs, 1);
  // So written that NaN is refused.
  if (!(op.epsilon > 0))
    throw ConfigError(fmt::format("{}: epsilon must be positive, is {}", op.kName, op.epsilon));
  if (!(op.momentum > 0 && op.momentum <= 1))
    throw ConfigError(fmt::format("{}: momentum must be in (0, 1], is {}", op.kName, op.momentum));
  const Shape channels{shape[-1]};
  const auto weight = op.zero_weight ? Initializer::Kind::zero : Initializer::Kind::one;
  return {
      .outputs = {inputs[0]},
      .parameters =
          {{"weight", channels, {weight}, ParameterRole::weight, true},
           {"bias", channels, {Initializer::Kind::zero}, ParameterRole::weight, true},
           {"running_mean", channels, {Initializer::Kind::zero}, ParameterRole::statistic, true, op.momentum},
           {"running_var", channels, {Initializer::Kind::one}, ParameterRole::statistic, true, op.momentum}},
      // The variance is kept beside the inverse deviation, since taking it back out of that loses digits.
      .auxiliary = {{"mean", channels, DType::float32, false},
                    {"inverse_deviation", channels, DType::float32, false},
                    {"variance", channels, DType::float32, false}},
      .backward = BackwardForm::joint,
      .differentiable = {true},
      .backward_needs_input = {true}};
}

template <>
OpCost cost_op(const BatchNorm&, Inputs inputs, int64_t batch) {
  const double count = static_cast<double>(inputs[0].shape.count() * batch);
  return {.forward_flops = 6 * count,
          .backward_input_flops = 9 * count,
          .forward_bytes = 12 * count,
          .backward_input_bytes = 20 * count};
}

void expect_variance(const BatchNorm& op, const Shape& input, const KernelOptions& options) {
  if (options.training && input.count() / input[-1] * options.batch == 1)
    throw ConfigError(
        fmt::format("{}: a micro-batch of {} sample of shape {} has a single value per channel, which has no "
                    "variance; use a micro_batch of at least 2, or under REPRODUCIBLE fewer virtual_replicas",
                    op.kName, options.batch, input.to_string()));
}

}  // namespace lockstep::ops
