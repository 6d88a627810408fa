// Ops that put elements elsewhere.

#include <sstream>

#include "net/oracle/op_parts.h"

namespace lockstep::net {
namespace {

int64_t positive(int64_t axis, const Shape& shape) { return axis < 0 ? axis + shape.rank() : axis; }

/// Calls work(number of the element, its indices) for every element of a sample.
template <class Work>
void for_each(const Shape& shape, const Work& work) {
  for (int64_t number = 0; number < shape.count(); ++number) {
    std::vector<int64_t> at(static_cast<size_t>(shape.rank()));
    int64_t left = number;
    for (int d = shape.rank(); d-- > 0; left /= shape[d]) at[static_cast<size_t>(d)] = left % shape[d];
    work(number, at);
  }
}

int64_t number_of(const Shape& shape, const std::vector<int64_t>& at) {
  int64_t number = 0;
  for (int d = 0; d < shape.rank(); ++d) number = number * shape[d] + at[static_cast<size_t>(d)];
  return number;
}

// Each calls work(input, element of its sample, element of the output's sample).

template <class Work>
void for_moves(const Concatenate& op, const OpCall& call, const Work& work) {
  int64_t begin = 0;
  for (size_t i = 0; i < call.inputs.size(); ++i) {
    const Shape& shape = call.input_shapes[i];
    const auto axis = static_cast<size_t>(positive(op.axis, shape));
    for_each(shape, [&](int64_t number, std::vector<int64_t> at) {
      at[axis] += begin;
      work(i, number, number_of(call.output_shape, at));
    });
    begin += shape[static_cast<int>(axis)];
  }
}

template <class Work>
void for_moves(const Slice& op, const OpCall& call, const Work& work) {
  for_each(call.output_shape, [&](int64_t number, std::vector<int64_t> at) {
    at[static_cast<size_t>(positive(op.axis, call.output_shape))] += op.begin;
    work(0, number_of(call.input_shapes[0], at), number);
  });
}

template <class Work>
void for_moves(const Transpose& op, const OpCall& call, const Work& work) {
  std::vector<size_t> order;
  std::istringstream text(op.order);
  for (std::string part; std::getline(text, part, ',');)
    order.push_back(static_cast<size_t>(std::stoi(part)));
  for_each(call.output_shape, [&](int64_t number, const std::vector<int64_t>& at) {
    std::vector<int64_t> from = at;
    for (size_t d = 0; d < order.size(); ++d) from[order[d]] = at[d];
    work(0, number_of(call.input_shapes[0], from), number);
  });
}

template <class Moving>
Values moved(const Moving& op, const OpCall& call) {
  const int64_t output = call.output_shape.count();
  Values y(static_cast<size_t>(call.samples * output));
  for_moves(op, call, [&](size_t input, int64_t from, int64_t to) {
    for (int64_t s = 0; s < call.samples; ++s)
      y[s * output + to] = (*call.inputs[input])[s * call.input_shapes[input].count() + from];
  });
  return y;
}

template <class Moving>
OpGradients moved_back(const Moving& op, const OpCall& call, const Values& dy) {
  OpGradients gradients;
  for (const Values* input : call.inputs) gradients.inputs.emplace_back(input->size());
  for_moves(op, call, [&](size_t input, int64_t from, int64_t to) {
    for (int64_t s = 0; s < call.samples; ++s)
      gradients.inputs[input][s * call.input_shapes[input].count() + from] =
          dy[s * call.output_shape.count() + to];
  });
  return gradients;
}

}  // namespace

Values forward_of(const Concatenate& op, const OpCall& call) { return moved(op, call); }
OpGradients backward_of(const Concatenate& op, const OpCall& call, const Values& dy) {
  return moved_back(op, call, dy);
}
Values forward_of(const Slice& op, const OpCall& call) { return moved(op, call); }
OpGradients backward_of(const Slice& op, const OpCall& call, const Values& dy) {
  return moved_back(op, call, dy);
}
Values forward_of(const Transpose& op, const OpCall& call) { return moved(op, call); }
OpGradients backward_of(const Transpose& op, const OpCall& call, const Values& dy) {
  return moved_back(op, call, dy);
}

Values forward_of(const PrependToken&, const OpCall& call) {
  const int64_t count = call.input_shapes[0].count();
  Values y;
  for (int64_t s = 0; s < call.samples; ++s) {
    y.insert(y.end(), call.parameters[0]->begin(), call.parameters[0]->end());
    y.insert(y.end(), call.inputs[0]->begin() + s * count, call.inputs[0]->begin() + (s + 1) * count);
  }
  return y;
}

OpGradients backward_of(const PrependToken&, const OpCall& call, const Values& dy) {
  const int64_t count = call.input_shapes[0].count(), channels = call.input_shapes[0][1];
  OpGradients gradients{{{}}, {Values(static_cast<size_t>(channels))}};
  for (int64_t s = 0; s < call.samples; ++s) {
    const auto token = dy.begin() + s * (count + channels);
    for (int64_t c = 0; c < channels; ++c) gradients.parameters[0][c] += token[c];
    gradients.inputs[0].insert(gradients.inputs[0].end(), token + channels, token + channels + count);
  }
  return gradients;
}

}  // namespace lockstep::net
