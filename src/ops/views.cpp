// Ops that only rename their input's memory.

#include <charconv>

#include "base/text.h"
#include "ops/checks.h"

namespace lockstep::ops {
namespace {

OpSignature view_as(const TensorSpec& input, Shape shape) {
  // Elements stay in their order, so equally many rows are the same rows.
  const bool keeps_rows = shape.rank() > 0 && input.shape.rank() > 0 && shape[0] == input.shape[0];
  return {.outputs = {{std::move(shape), input.dtype}},
          .differentiable = {input.dtype == DType::float32},
          .backward_needs_input = {false},
          .alias = true,
          .passes_gradient = true,
          .positions = keeps_rows ? PositionUse::own : PositionUse::any};
}

/// The dimensions of `text`, with its -1, if it has one, replaced by what `count` elements leave for it.
Shape parse_dimensions(std::string_view op, const std::string& text, const Shape& input) {
  std::vector<int64_t> dims;
  int64_t* open = nullptr;
  int64_t known = 1;
  const std::vector<std::string> parts = split(text, ',');
  if (parts.empty())
    throw ConfigError(fmt::format("{}: shape must be a comma list such as \"7,7,16\", is empty", op));
  dims.reserve(parts.size());
  for (const std::string& part : parts) {
    int64_t dim = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), dim);
    if (error != std::errc() || end != part.data() + part.size() || (dim <= 0 && dim != -1))
      throw ConfigError(
          fmt::format("{}: '{}' in shape \"{}\" is not a positive dimension or -1", op, part, text));
    dims.push_back(dim);
    if (dim == -1 && open != nullptr)
      throw ConfigError(fmt::format("{}: shape \"{}\" has more than one -1", op, text));
    if (dim == -1)
      open = &dims.back();
    else if (__builtin_mul_overflow(known, dim, &known))
      throw ConfigError(fmt::format("{}: shape \"{}\" has more elements than 63 bits count", op, text));
  }
  const int64_t count = input.count();
  if (open != nullptr && count % known == 0)
    *open = count / known;
  else if (open != nullptr || count != known)
    throw ConfigError(fmt::format("{}: the {} elements of input {} do not fit shape \"{}\"", op, count,
                                  input.to_string(), text));
  return Shape(std::move(dims));
}

}  // namespace

template <>
OpSignature infer_op(const Flatten& op, Inputs inputs) {
  expect_input_count(op.kName, inputs, 1);
  return view_as(inputs[0], Shape{inputs[0].shape.count()});
}

template <>
OpSignature infer_op(const Reshape& op, Inputs inputs) {
  expect_input_count(op.kName, inputs, 1);
  return view_as(inputs[0], parse_dimensions(op.kName, op.shape, inputs[0].shape));
}

template <>
OpCost cost_op(const Flatten&, Inputs, int64_t) {
  return {};
}
template <>
OpCost cost_op(const Reshape&, Inputs, int64_t) {
  return {};
}

}  // namespace lockstep::ops
