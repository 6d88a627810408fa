#include <algorithm>
#include <cmath>

#include "net/oracle/op_parts.h"

namespace lockstep::net {
namespace {

struct Moments {
  double mean = 0, variance = 0;
};

/// Of `count` elements, `step` apart.
Moments moments_of(const OpCall& call, int64_t first, int64_t count, int64_t step) {
  const Values& x = *call.inputs[0];
  Moments moments;
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    moments.mean += x[first + i * step];
    largest = std::max(largest, std::abs(x[first + i * step]));
  }
  moments.mean /= static_cast<double>(count);
  if (call.error) moments.mean += call.error(largest);
  for (int64_t i = 0; i < count; ++i) moments.variance += std::pow(x[first + i * step] - moments.mean, 2);
  moments.variance /= static_cast<double>(count);
  return moments;
}

/// Of y = (x - mean) / sqrt(variance + epsilon), whose gradient is dn, for `count` elements, `step` apart.
void normalized_backward(const OpCall& call, const Values& dn, Values& dx, double epsilon, int64_t first,
                         int64_t count, int64_t step) {
  const Values& x = *call.inputs[0];
  const Moments moments = moments_of(call, first, count, step);
  const double inverse = 1 / std::sqrt(moments.variance + epsilon);
  double mean = 0, mean_of_product = 0, largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i * step;
    largest = std::max(largest, std::abs(dn[at]));
    mean += dn[at] / static_cast<double>(count);
    mean_of_product += dn[at] * (x[at] - moments.mean) * inverse / static_cast<double>(count);
  }
  if (call.error) mean += call.error(largest);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = first + i * step;
    dx[at] = inverse * (dn[at] - mean - (x[at] - moments.mean) * inverse * mean_of_product);
  }
}

}  // namespace

Values forward_of(const BatchNorm& op, const OpCall& call) {
  const int64_t channels = call.input_shapes[0][-1], rows = call.rows();
  const Values& x = *call.inputs[0];
  Values y(x.size());
  for (int64_t c = 0; c < channels; ++c) {
    Moments moments{(*call.parameters[2])[c], (*call.parameters[3])[c]};
    if (call.training) moments = moments_of(call, c, rows, channels);
    const double scale =
        (*call.parameters[0])[c] / std::sqrt(moments.variance + static_cast<double>(op.epsilon));
    for (int64_t r = 0; r < rows; ++r)
      y[r * channels + c] = (x[r * channels + c] - moments.mean) * scale + (*call.parameters[1])[c];
  }
  return y;
}

OpGradients backward_of(const BatchNorm& op, const OpCall& call, const Values& dy) {
  const int64_t channels = call.input_shapes[0][-1], rows = call.rows();
  const auto size = static_cast<size_t>(channels);
  const Values& x = *call.inputs[0];
  Values dx(x.size()), dn(dy);
  OpGradients gradients{{}, {Values(size), Values(size), Values(size), Values(size)}};
  for (int64_t c = 0; c < channels; ++c) {
    const Moments moments = moments_of(call, c, rows, channels);
    const double inverse = 1 / std::sqrt(moments.variance + static_cast<double>(op.epsilon));
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = r * channels + c;
      gradients.parameters[0][c] += dy[at] * (x[at] - moments.mean) * inverse;
      gradients.parameters[1][c] += dy[at];
      dn[at] = dy[at] * (*call.parameters[0])[c];
    }
    gradients.parameters[2][c] = moments.mean;
    gradients.parameters[3][c] = moments.variance * static_cast<double>(rows) / static_cast<double>(rows - 1);
    normalized_backward(call, dn, dx, static_cast<double>(op.epsilon), c, rows, channels);
  }
  gradients.inputs.push_back(dx);
  return gradients;
}

Values forward_of(const LayerNorm& op, const OpCall& call) {
  const int64_t channels = call.input_shapes[0][-1], rows = call.rows();
  const Values& x = *call.inputs[0];
  Values y(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    const Moments moments = moments_of(call, r * channels, channels, 1);
    const double inverse = 1 / std::sqrt(moments.variance + static_cast<double>(op.epsilon));
    for (int64_t c = 0; c < channels; ++c)
      y[r * channels + c] = (x[r * channels + c] - moments.mean) * inverse * (*call.parameters[0])[c] +
                            (op.bias ? (*call.parameters[1])[c] : 0);
  }
  return y;
}

OpGradients backward_of(const LayerNorm& op, const OpCall& call, const Values& dy) {
  const int64_t channels = call.input_shapes[0][-1], rows = call.rows();
  const auto size = static_cast<size_t>(channels);
  const Values& x = *call.inputs[0];
  Values dx(x.size()), dn(dy), dw(size), db(size);
  for (int64_t r = 0; r < rows; ++r) {
    const Moments moments = moments_of(call, r * channels, channels, 1);
    const double inverse = 1 / std::sqrt(moments.variance + static_cast<double>(op.epsilon));
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t at = r * channels + c;
      dw[c] += dy[at] * (x[at] - moments.mean) * inverse;
      db[c] += dy[at];
      dn[at] = dy[at] * (*call.parameters[0])[c];
    }
    normalized_backward(call, dn, dx, static_cast<double>(op.epsilon), r * channels, channels, 1);
  }
  OpGradients gradients{{dx}, {dw}};
  if (op.bias) gradients.parameters.push_back(db);
  return gradients;
}

namespace {

/// 1 / sqrt(mean square + epsilon) of row `row`.
double inverse_root(const RmsNorm& op, const OpCall& call, int64_t row) {
  const int64_t channels = call.input_shapes[0][-1];
  double square = 0;
  for (int64_t c = 0; c < channels; ++c)
    square += std::pow((*call.inputs[0])[row * channels + c], 2) / static_cast<double>(channels);
  return 1 / std::sqrt(square + static_cast<double>(op.epsilon));
}

}  // namespace

Values forward_of(const RmsNorm& op, const OpCall& call) {
  const int64_t channels = call.input_shapes[0][-1];
  Values y = *call.inputs[0];
  for (int64_t r = 0; r < call.rows(); ++r) {
    const double inverse = inverse_root(op, call, r);
    for (int64_t c = 0; c < channels; ++c) y[r * channels + c] *= inverse * (*call.parameters[0])[c];
  }
  return y;
}

OpGradients backward_of(const RmsNorm& op, const OpCall& call, const Values& dy) {
  const int64_t channels = call.input_shapes[0][-1];
  const Values &x = *call.inputs[0], &weight = *call.parameters[0];
  Values dx(x.size()), dw(static_cast<size_t>(channels));
  for (int64_t r = 0; r < call.rows(); ++r) {
    const double inverse = inverse_root(op, call, r);
    double mean_of_product = 0;
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t at = r * channels + c;
      dw[c] += dy[at] * x[at] * inverse;
      mean_of_product += dy[at] * weight[c] * x[at] * inverse / static_cast<double>(channels);
    }
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t at = r * channels + c;
      dx[at] = inverse * (dy[at] * weight[c] - x[at] * inverse * mean_of_product);
    }
  }
  return {{dx}, {dw}};
}

}  // namespace lockstep::net
