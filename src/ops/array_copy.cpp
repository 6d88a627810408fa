#include "ops/array_copy.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/text.h"
#include "ops/checks.h"

// Ops that move elements: concatenate, slice, transpose.

namespace lockstep::ops {

int64_t ArrayCopy::count() const {
  int64_t product = 1;
  for (int d = 0; d < rank; ++d) product *= dims[d];
  return product;
}

ArrayCopy ArrayCopy::inverse() const {
  ArrayCopy back = *this;
  std::swap(back.from_strides, back.to_strides);
  std::swap(back.from_offset, back.to_offset);
  return back;
}

ArrayCopy ArrayCopy::joined() const {
  ArrayCopy made{.from_offset = from_offset, .to_offset = to_offset};
  for (int d = 0; d < rank; ++d) {
    if (dims[d] == 1) continue;
    const int last = made.rank - 1;
    if (last >= 0 && made.from_strides[last] == from_strides[d] * dims[d] &&
        made.to_strides[last] == to_strides[d] * dims[d]) {
      made.dims[last] *= dims[d];
      made.from_strides[last] = from_strides[d];
      made.to_strides[last] = to_strides[d];
      continue;
    }
    made.dims[made.rank] = dims[d];
    made.from_strides[made.rank] = from_strides[d];
    made.to_strides[made.rank++] = to_strides[d];
  }
  if (made.rank == 0) {
    made.rank = 1;
    made.dims[0] = made.from_strides[0] = made.to_strides[0] = 1;
  }
  return made;
}

namespace {

void check_rank(std::string_view op, const Shape& shape) {
  if (shape.rank() < 1 || shape.rank() >= kMostCopyDimensions)
    throw ConfigError(fmt::format("{}: input must have from 1 to {} dimensions, has shape {}", op,
                                  kMostCopyDimensions - 1, shape.to_string()));
}

int axis_of(std::string_view op, int64_t axis, const Shape& shape) {
  if (axis < -shape.rank() || axis >= shape.rank())
    throw ConfigError(fmt::format("{}: axis must be from {} to {} for an input of shape {}, is {}", op,
                                  -shape.rank(), shape.rank() - 1, shape.to_string(), axis));
  return static_cast<int>(axis < 0 ? axis + shape.rank() : axis);
}

/// Of an array [batch, shape]: dense strides.
std::vector<int64_t> strides_of(const Shape& shape) {
  std::vector<int64_t> strides(static_cast<size_t>(shape.rank() + 1), 1);
  for (int d = shape.rank(); d-- > 0;)
    strides[static_cast<size_t>(d)] = strides[static_cast<size_t>(d + 1)] * shape[d];
  return strides;
}

/// All elements of `dims` in a batch, which lie in both arrays in the same order of dimensions.
ArrayCopy copy_of(const Shape& dims, int64_t batch, const Shape& from, const Shape& to) {
  ArrayCopy copy{.rank = dims.rank() + 1};
  const auto from_strides = strides_of(from), to_strides = strides_of(to);
  for (int d = 0; d <= dims.rank(); ++d) {
    copy.dims[d] = d == 0 ? batch : dims[d - 1];
    copy.from_strides[d] = from_strides[static_cast<size_t>(d)];
    copy.to_strides[d] = to_strides[static_cast<size_t>(d)];
  }
  return copy;
}

Shape with_dimension(const Shape& shape, int axis, int64_t size) {
  std::vector<int64_t> dims = shape.dims();
  dims[static_cast<size_t>(axis)] = size;
  return Shape(std::move(dims));
}

OpSignature moves(Shape output, size_t inputs, bool keeps_rows) {
  return {.outputs = {{std::move(output)}},
          .differentiable = std::vector<bool>(inputs, true),
          .backward_needs_input = std::vector<bool>(inputs, false),
          .positions = keeps_rows ? PositionUse::own : PositionUse::any};
}

OpCost moving_cost(double elements, double gradients) {
  return {.forward_bytes = 8 * elements, .backward_input_bytes = 4 * (elements + gradients)};
}

struct Range {
  int axis;
  int64_t begin, size;
};

Range range_of(const Slice& op, const Shape& shape) {
  const int axis = axis_of(op.kName, op.axis, shape);
  const int64_t end = op.end <= 0 ? shape[axis] + op.end : op.end;
  if (op.begin < 0 || end > shape[axis] || op.begin >= end)
    throw ConfigError(fmt::format(
        "{}: [{}, {}) is no part of dimension {} of an input of shape {}; begin is from 0 on, end "
        "at most the dimension, or counted from its end if it is not positive",
        op.kName, op.begin, end, axis, shape.to_string()));
  return {axis, op.begin, end - op.begin};
}

std::vector<int> order_of(const Transpose& op, const Shape& shape) {
  std::vector<int> order;
  for (const std::string& part : split(op.order, ',')) {
    int number = -1;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error != std::errc() || end != part.data() + part.size()) number = -1;
    order.push_back(number);
  }
  std::vector<int> sorted = order;
  std::ranges::sort(sorted);
  for (int d = 0; d < shape.rank(); ++d)
    if (std::ssize(sorted) != shape.rank() || sorted[static_cast<size_t>(d)] != d)
      throw ConfigError(fmt::format(
          "{}: order must list each dimension of an input of shape {} once, from 0 to {}, such "
          "as \"{}\"; is \"{}\"",
          op.kName, shape.to_string(), shape.rank() - 1, shape.rank() == 2 ? "1,0" : "2,0,1", op.order));
  return order;
}

}  // namespace

template <>
OpSignature infer_op(const Concatenate& op, Inputs inputs) {
  if (inputs.size() < 2)
    throw ConfigError(fmt::format("{}: takes two inputs or more, is given {}", op.kName, inputs.size()));
  const Shape& first = expect_float32_input(op.kName, inputs.first(1));
  check_rank(op.kName, first);
  const int axis = axis_of(op.kName, op.axis, first);
  int64_t size = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Shape& shape = expect_float32_input(op.kName, inputs.subspan(i, 1));
    if (shape.rank() != first.rank() || shape != with_dimension(first, axis, shape[axis]))
      throw ConfigError(fmt::format("{}: inputs may differ in dimension {} alone, are {} and {}", op.kName,
                                    axis, first.to_string(), shape.to_string()));
    size += shape[axis];
  }
  return moves(with_dimension(first, axis, size), inputs.size(), axis > 0);
}

template <>
OpCost cost_op(const Concatenate&, Inputs inputs, int64_t batch) {
  double count = 0;
  for (const TensorSpec& input : inputs) count += static_cast<double>(input.shape.count() * batch);
  return moving_cost(count, count);
}

ArrayCopies copies_of(const Concatenate& op, Inputs inputs, int64_t batch) {
  const Shape output = infer_op(op, inputs).outputs[0].shape;
  const int axis = axis_of(op.kName, op.axis, output);
  const int64_t stride = strides_of(output)[static_cast<size_t>(axis) + 1];
  ArrayCopies copies;
  int64_t begin = 0;
  for (const TensorSpec& input : inputs) {
    copies.of_inputs.push_back(copy_of(input.shape, batch, input.shape, output));
    copies.of_inputs.back().to_offset = begin * stride;
    begin += input.shape[axis];
  }
  return copies;
}

template <>
OpSignature infer_op(const Slice& op, Inputs inputs) {
  const Shape& shape = expect_float32_input(op.kName, inputs);
  check_rank(op.kName, shape);
  const Range range = range_of(op, shape);
  return moves(with_dimension(shape, range.axis, range.size), 1, range.axis > 0);
}

template <>
OpCost cost_op(const Slice& op, Inputs inputs, int64_t batch) {
  const Shape& shape = inputs[0].shape;
  const Range range = range_of(op, shape);
  const auto all = static_cast<double>(shape.count() * batch);
  return moving_cost(all / static_cast<double>(shape[range.axis]) * static_cast<double>(range.size), all);
}

ArrayCopies copies_of(const Slice& op, Inputs inputs, int64_t batch) {
  const Shape& shape = inputs[0].shape;
  const Range range = range_of(op, shape);
  const Shape output = with_dimension(shape, range.axis, range.size);
  ArrayCopy copy = copy_of(output, batch, shape, output);
  copy.from_offset = range.begin * strides_of(shape)[static_cast<size_t>(range.axis) + 1];
  return {.of_inputs = {copy}, .leaves_out = range.size < shape[range.axis]};
}

template <>
OpSignature infer_op(const Transpose& op, Inputs inputs) {
  const Shape& shape = expect_float32_input(op.kName, inputs);
  check_rank(op.kName, shape);
  const std::vector<int> order = order_of(op, shape);
  std::vector<int64_t> dims;
  for (const int d : order) dims.push_back(shape[d]);
  return moves(Shape(std::move(dims)), 1, order[0] == 0 && shape.rank() > 1);
}

template <>
OpCost cost_op(const Transpose&, Inputs inputs, int64_t batch) {
  const auto count = static_cast<double>(inputs[0].shape.count() * batch);
  return moving_cost(count, count);
}

ArrayCopies copies_of(const Transpose& op, Inputs inputs, int64_t batch) {
  const Shape& shape = inputs[0].shape;
  const Shape output = infer_op(op, inputs).outputs[0].shape;
  const std::vector<int> order = order_of(op, shape);
  ArrayCopy copy = copy_of(output, batch, output, output);
  const auto strides = strides_of(shape);
  for (size_t d = 0; d < order.size(); ++d)
    copy.from_strides[d + 1] = strides[static_cast<size_t>(order[d]) + 1];
  return {.of_inputs = {copy}};
}

}  // namespace lockstep::ops
