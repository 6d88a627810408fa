#include "net/oracle/ops.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/philox.h"
#include "net/oracle/op_parts.h"

namespace lockstep::net {
namespace {

double largest(const Values& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

Values forward_of(const Linear& op, const OpCall& call) {
  const int64_t in = call.input_shapes[0][-1], rows = call.rows();
  const Values &x = *call.inputs[0], &weight = *call.parameters[0];
  Values y(static_cast<size_t>(rows * op.units));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t u = 0; u < op.units; ++u) {
      double sum = op.bias ? (*call.parameters[1])[u] : 0;
      for (int64_t i = 0; i < in; ++i) sum += x[r * in + i] * weight[u * in + i];
      y[r * op.units + u] = sum;
    }
  return y;
}

OpGradients backward_of(const Linear& op, const OpCall& call, const Values& dy) {
  const int64_t in = call.input_shapes[0][-1], rows = call.rows();
  const Values &x = *call.inputs[0], &weight = *call.parameters[0];
  Values dx(x.size()), dw(weight.size()), db(static_cast<size_t>(op.units));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t u = 0; u < op.units; ++u) {
      const double g = dy[r * op.units + u];
      db[u] += g;
      for (int64_t i = 0; i < in; ++i) {
        dx[r * in + i] += g * weight[u * in + i];
        dw[u * in + i] += g * x[r * in + i];
      }
    }
  OpGradients gradients{{dx}, {dw}};
  if (op.bias) gradients.parameters.push_back(db);
  return gradients;
}

Values forward_of(const GlobalPool2d&, const OpCall& call) {
  const Shape& shape = call.input_shapes[0];
  const int64_t pixels = shape[0] * shape[1], channels = shape[2];
  Values y(static_cast<size_t>(call.samples * channels));
  for (int64_t s = 0; s < call.samples; ++s)
    for (int64_t p = 0; p < pixels; ++p)
      for (int64_t c = 0; c < channels; ++c)
        y[s * channels + c] +=
            (*call.inputs[0])[(s * pixels + p) * channels + c] / static_cast<double>(pixels);
  return y;
}

OpGradients backward_of(const GlobalPool2d&, const OpCall& call, const Values& dy) {
  const Shape& shape = call.input_shapes[0];
  const int64_t pixels = shape[0] * shape[1], channels = shape[2];
  Values dx(call.inputs[0]->size());
  for (int64_t s = 0; s < call.samples; ++s)
    for (int64_t p = 0; p < pixels; ++p)
      for (int64_t c = 0; c < channels; ++c)
        dx[(s * pixels + p) * channels + c] = dy[s * channels + c] / static_cast<double>(pixels);
  return {{dx}, {}};
}

Values forward_of(const Embedding& op, const OpCall& call) {
  Values y;
  for (const double token : *call.inputs[0])
    for (int64_t c = 0; c < op.width; ++c)
      y.push_back((*call.parameters[0])[static_cast<int64_t>(token) * op.width + c]);
  return y;
}

OpGradients backward_of(const Embedding& op, const OpCall& call, const Values& dy) {
  Values dw(call.parameters[0]->size());
  for (size_t i = 0; i < dy.size(); ++i) {
    const auto width = static_cast<size_t>(op.width);
    dw[static_cast<size_t>((*call.inputs[0])[i / width]) * width + i % width] += dy[i];
  }
  return {{{}}, {dw}};
}

Values forward_of(const PositionEmbedding&, const OpCall& call) {
  const auto count = static_cast<size_t>(call.input_shapes[0].count());
  Values y = *call.inputs[0];
  for (size_t i = 0; i < y.size(); ++i) y[i] += (*call.parameters[0])[i % count];
  return y;
}

OpGradients backward_of(const PositionEmbedding&, const OpCall& call, const Values& dy) {
  const auto count = static_cast<size_t>(call.input_shapes[0].count());
  Values dw(call.parameters[0]->size());
  for (size_t i = 0; i < dy.size(); ++i) dw[i % count] += dy[i];
  return {{dy}, {dw}};
}

Values forward_of(const Dropout& op, const OpCall& call) {
  Values y = dropout_factors(op.rate, call, call.output_shape.count());
  for (size_t i = 0; i < y.size(); ++i) y[i] *= (*call.inputs[0])[i];
  return y;
}

OpGradients backward_of(const Dropout& op, const OpCall& call, const Values& dy) {
  Values dx = dropout_factors(op.rate, call, call.output_shape.count());
  for (size_t i = 0; i < dx.size(); ++i) dx[i] *= dy[i];
  return {{dx}, {}};
}

double gelu_inner(double x) { return std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x); }
double value_of(const Relu&, double x) { return x > 0 ? x : 0; }
double slope_of(const Relu&, double x) { return x > 0 ? 1 : 0; }
double value_of(const Gelu& op, double x) {
  if (op.kind == GeluKind::erf) return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
  return 0.5 * x * (1 + std::tanh(gelu_inner(x)));
}
double slope_of(const Gelu& op, double x) {
  if (op.kind == GeluKind::erf)
    return 0.5 * std::erfc(-x / std::numbers::sqrt2) +
           x * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
  const double t = std::tanh(gelu_inner(x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
}
double value_of(const Silu&, double x) { return x / (1 + std::exp(-x)); }
double slope_of(const Silu&, double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s + x * s * (1 - s);
}
double value_of(const Sigmoid&, double x) { return 1 / (1 + std::exp(-x)); }
double slope_of(const Sigmoid& op, double x) { return value_of(op, x) * (1 - value_of(op, x)); }
double value_of(const Tanh&, double x) { return std::tanh(x); }
double slope_of(const Tanh&, double x) { return 1 - std::tanh(x) * std::tanh(x); }

template <class Activation>
Values activated(const Activation& op, const OpCall& call) {
  Values y = *call.inputs[0];
  if constexpr (std::is_same_v<Activation, Relu>) {
    const double scale = largest(y);
    for (const double x : y) near_kink(call, std::abs(x), scale);
  }
  for (double& x : y) x = value_of(op, x);
  return y;
}

template <class Activation>
OpGradients through(const Activation& op, const OpCall& call, const Values& dy) {
  Values dx = *call.inputs[0];
  for (size_t i = 0; i < dx.size(); ++i) dx[i] = slope_of(op, dx[i]) * dy[i];
  return {{dx}, {}};
}

Values forward_of(const Relu& op, const OpCall& call) { return activated(op, call); }
Values forward_of(const Gelu& op, const OpCall& call) { return activated(op, call); }
Values forward_of(const Silu& op, const OpCall& call) { return activated(op, call); }
Values forward_of(const Sigmoid& op, const OpCall& call) { return activated(op, call); }
Values forward_of(const Tanh& op, const OpCall& call) { return activated(op, call); }
OpGradients backward_of(const Relu& op, const OpCall& call, const Values& dy) {
  return through(op, call, dy);
}
OpGradients backward_of(const Gelu& op, const OpCall& call, const Values& dy) {
  return through(op, call, dy);
}
OpGradients backward_of(const Silu& op, const OpCall& call, const Values& dy) {
  return through(op, call, dy);
}
OpGradients backward_of(const Sigmoid& op, const OpCall& call, const Values& dy) {
  return through(op, call, dy);
}
OpGradients backward_of(const Tanh& op, const OpCall& call, const Values& dy) {
  return through(op, call, dy);
}

Values forward_of(const Add&, const OpCall& call) {
  Values y = *call.inputs[0];
  for (size_t i = 0; i < y.size(); ++i) y[i] += (*call.inputs[1])[i];
  return y;
}
OpGradients backward_of(const Add&, const OpCall&, const Values& dy) { return {{dy, dy}, {}}; }

Values forward_of(const Multiply&, const OpCall& call) {
  Values y = *call.inputs[0];
  for (size_t i = 0; i < y.size(); ++i) y[i] *= (*call.inputs[1])[i];
  return y;
}
OpGradients backward_of(const Multiply&, const OpCall& call, const Values& dy) {
  OpGradients gradients{{*call.inputs[1], *call.inputs[0]}, {}};
  for (Values& gradient : gradients.inputs)
    for (size_t i = 0; i < dy.size(); ++i) gradient[i] *= dy[i];
  return gradients;
}

Values forward_of(const Flatten&, const OpCall& call) { return *call.inputs[0]; }
OpGradients backward_of(const Flatten&, const OpCall&, const Values& dy) { return {{dy}, {}}; }
Values forward_of(const Reshape&, const OpCall& call) { return *call.inputs[0]; }
OpGradients backward_of(const Reshape&, const OpCall&, const Values& dy) { return {{dy}, {}}; }
// No random model has ops of a program's own.
Values forward_of(const Custom&, const OpCall&) { return {}; }
OpGradients backward_of(const Custom&, const OpCall&, const Values&) { return {}; }
// A model is interpreted as it was written, without forks.
Values forward_of(const Fork&, const OpCall&) { return {}; }
OpGradients backward_of(const Fork&, const OpCall&, const Values&) { return {}; }

Values forward_of(const MeanSquaredError&, const OpCall& call) {
  double sum = 0;
  for (size_t i = 0; i < call.inputs[0]->size(); ++i)
    sum += std::pow((*call.inputs[0])[i] - (*call.inputs[1])[i], 2);
  return {sum, static_cast<double>(call.inputs[0]->size())};
}

OpGradients backward_of(const MeanSquaredError&, const OpCall& call) {
  Values dx = *call.inputs[0];
  for (size_t i = 0; i < dx.size(); ++i) dx[i] = 2 * (dx[i] - (*call.inputs[1])[i]);
  return {{dx, {}}, {}};
}

template <class Loss>
concept IsLoss = std::is_same_v<Loss, SoftmaxCrossEntropy> || std::is_same_v<Loss, MeanSquaredError>;

}  // namespace

Values dropout_factors(float rate, const OpCall& call, int64_t count) {
  Values factors(static_cast<size_t>(call.samples * count), 1.0);
  if (rate == 0 || !call.training) return factors;
  const uint32_t purpose = call.op_number << 8 | static_cast<uint32_t>(RandomPurpose::dropout);
  for (int64_t s = 0; s < call.samples; ++s)
    for (int64_t i = 0; i < count; ++i) {
      const auto group = static_cast<uint32_t>(i / 4), sample = static_cast<uint32_t>(call.first_sample + s);
      const Philox::Block block =
          Philox::generate({{group, sample, static_cast<uint32_t>(call.step), purpose}}, call.seed);
      const bool dropped = Philox::uniform(block.word[i % 4]) < rate;
      factors[s * count + i] = dropped ? 0 : static_cast<double>(1.0f / (1.0f - rate));
    }
  return factors;
}

Values forward(const Op& op, const OpCall& call) {
  return std::visit([&](const auto& o) { return forward_of(o, call); }, op);
}

OpGradients backward(const Op& op, const OpCall& call, const Values& gradient) {
  return std::visit(
      [&]<class O>(const O& o) {
        if constexpr (IsLoss<O>)
          return backward_of(o, call);
        else
          return backward_of(o, call, gradient);
      },
      op);
}

}  // namespace lockstep::net
