#include "ops/checks.h"

namespace lockstep::ops {

template <>
OpSignature infer_op(const Embedding& op, Inputs inputs) {
  expect_input_count(op.kName, inputs, 1);
  expect_dtype(op.kName, "input", inputs[0], DType::int32);
  expect_positive(op.kName, "vocabulary", op.vocabulary);
  expect_positive(op.kName, "width", op.width);
  check_not_negative(op.kName, "init_range", op.init_range);
  // Configs have the default of init_std filled in, also beside init_range.
  if (op.init_range > 0 && op.init_std != Embedding{}.init_std)
    throw ConfigError(fmt::format(
        "{}: init_std and init_range each say what the weight begins at; keep one of them", op.kName));
  const Initializer init = op.init_range > 0 ? Initializer{Initializer::Kind::uniform, op.init_range}
                                             : Initializer{Initializer::Kind::normal, op.init_std};
  std::vector<int64_t> dims = inputs[0].shape.dims();
  dims.push_back(op.width);
  return {
      .outputs = {{Shape(std::move(dims)), DType::float32}},
      .parameters = {{.name = "weight", .shape = {op.vocabulary, op.width}, .init = init, .narrow = true}},
      .backward = BackwardForm::split,
      .differentiable = {false},
      .backward_needs_input = {true},
      .positions = inputs[0].shape.rank() > 0 ? PositionUse::own : PositionUse::any};
}

template <>
OpCost cost_op(const Embedding& op, Inputs inputs, int64_t batch) {
  const double count = static_cast<double>(inputs[0].shape.count()) * static_cast<double>(batch) *
                       static_cast<double>(op.width);
  const double table = static_cast<double>(op.vocabulary) * static_cast<double>(op.width);
  return {.backward_weight_flops = count,
          .forward_bytes = 8 * count,
          .backward_weight_bytes = 12 * count + 4 * table};
}

template <>
OpSignature infer_op(const PositionEmbedding& op, Inputs inputs) {
  const Shape& shape = expect_float32_input(op.kName, inputs);
  expect_positive(op.kName, "positions", op.positions);
  if (shape.rank() != 2)
    throw ConfigError(
        fmt::format("{}: input must be [positions, channels], has shape {}", op.kName, shape.to_string()));
  if (shape[0] > op.positions)
    throw ConfigError(fmt::format("{}: an input of {} positions is longer than the table of {}", op.kName,
                                  shape[0], op.positions));
  return {.outputs = {inputs[0]},
          .parameters = {{.name = "weight",
                          .shape = {op.positions, shape[1]},
                          .init = {Initializer::Kind::normal, op.init_std},
                          .narrow = true}},
          .backward = BackwardForm::split,
          .differentiable = {true},
          .backward_needs_input = {false},
          .positions = PositionUse::place};
}

template <>
OpCost cost_op(const PositionEmbedding& op, Inputs inputs, int64_t batch) {
  const double sample = static_cast<double>(inputs[0].shape.count());
  const double count = sample * static_cast<double>(batch);
  const double table = static_cast<double>(op.positions) * static_cast<double>(inputs[0].shape[1]);
  return {.forward_flops = count,
          .backward_weight_flops = count,
          .forward_bytes = 8 * count + 4 * sample,
          .backward_input_bytes = 8 * count,
          .backward_weight_bytes = 4 * count + 4 * table};
}

}  // namespace lockstep::ops
