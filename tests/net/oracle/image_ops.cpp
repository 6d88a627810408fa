#include <algorithm>
#include <cmath>

#include "net/oracle/op_parts.h"

namespace lockstep::net {
namespace {

/// Calls `visit(output pixel, input pixel, place in the window)` for all pixels of all windows that lie in
/// the image. Pixels are numbered over all samples.
template <class Visit>
void for_windows(const OpCall& call, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                 const Visit& visit) {
  const int64_t height = call.input_shapes[0][0], width = call.input_shapes[0][1];
  const int64_t out_height = call.output_shape[0], out_width = call.output_shape[1];
  for (int64_t s = 0; s < call.samples; ++s)
    for (int64_t oy = 0; oy < out_height; ++oy)
      for (int64_t ox = 0; ox < out_width; ++ox)
        for (int64_t ky = 0; ky < kernel; ++ky)
          for (int64_t kx = 0; kx < kernel; ++kx) {
            const int64_t y = oy * stride - padding + ky * dilation,
                          x = ox * stride - padding + kx * dilation;
            if (y < 0 || y >= height || x < 0 || x >= width) continue;
            visit((s * out_height + oy) * out_width + ox, (s * height + y) * width + x, ky * kernel + kx);
          }
}

int64_t stride_of(const Pool2d& op) { return op.stride == 0 ? op.kernel : op.stride; }

}  // namespace

Values forward_of(const Conv2d& op, const OpCall& call) {
  const int64_t all = call.input_shapes[0][2], out = op.channels, area = op.kernel * op.kernel;
  const int64_t in = all / op.groups, of_group = out / op.groups;
  const Values &x = *call.inputs[0], &weight = *call.parameters[0];
  Values y(static_cast<size_t>(call.samples * call.output_shape.count()));
  for (size_t i = 0; op.bias && i < y.size(); ++i) y[i] = (*call.parameters[1])[i % static_cast<size_t>(out)];
  for_windows(
      call, op.kernel, op.stride, op.padding, op.dilation, [&](int64_t to, int64_t from, int64_t place) {
        for (int64_t o = 0; o < out; ++o)
          for (int64_t i = 0; i < in; ++i)
            y[to * out + o] += x[from * all + o / of_group * in + i] * weight[(o * area + place) * in + i];
      });
  return y;
}

OpGradients backward_of(const Conv2d& op, const OpCall& call, const Values& dy) {
  const int64_t all = call.input_shapes[0][2], out = op.channels, area = op.kernel * op.kernel;
  const int64_t in = all / op.groups, of_group = out / op.groups;
  const Values &x = *call.inputs[0], &weight = *call.parameters[0];
  Values dx(x.size()), dw(weight.size()), db(static_cast<size_t>(out));
  for (size_t i = 0; i < dy.size(); ++i) db[i % static_cast<size_t>(out)] += dy[i];
  for_windows(call, op.kernel, op.stride, op.padding, op.dilation,
              [&](int64_t to, int64_t from, int64_t place) {
                for (int64_t o = 0; o < out; ++o)
                  for (int64_t i = 0; i < in; ++i) {
                    const int64_t read = from * all + o / of_group * in + i, w = (o * area + place) * in + i;
                    dx[read] += dy[to * out + o] * weight[w];
                    dw[w] += dy[to * out + o] * x[read];
                  }
              });
  OpGradients gradients{{dx}, {dw}};
  if (op.bias) gradients.parameters.push_back(db);
  return gradients;
}

namespace {

/// By output element: which input element it is, or how many inputs it is the mean of.
struct Windows {
  std::vector<int64_t> argmax, counts;
};

Windows windows_of(const Pool2d& op, const OpCall& call) {
  const int64_t channels = call.input_shapes[0][2];
  const Values& x = *call.inputs[0];
  const auto size = static_cast<size_t>(call.samples * call.output_shape.count());
  Windows windows{std::vector<int64_t>(size, -1), std::vector<int64_t>(size, 0)};
  for_windows(call, op.kernel, stride_of(op), op.padding, 1, [&](int64_t to, int64_t from, int64_t) {
    for (int64_t c = 0; c < channels; ++c) {
      int64_t& best = windows.argmax[to * channels + c];
      ++windows.counts[to * channels + c];
      // Of equal values the first wins.
      if (best < 0 || x[from * channels + c] > x[best]) best = from * channels + c;
    }
  });
  return windows;
}

/// What the sum of the window that made y[i] is divided by.
double divisor_of(const Pool2d& op, const Windows& windows, int64_t i) {
  return static_cast<double>(op.count_include_pad ? op.kernel * op.kernel : windows.counts[i]);
}

void find_kinks(const Pool2d& op, const OpCall& call, const Windows& windows) {
  const int64_t channels = call.input_shapes[0][2];
  const Values& x = *call.inputs[0];
  double scale = 0;
  for (const double value : x) scale = std::max(scale, std::abs(value));
  for_windows(call, op.kernel, stride_of(op), op.padding, 1, [&](int64_t to, int64_t from, int64_t) {
    for (int64_t c = 0; c < channels; ++c)
      if (const int64_t best = windows.argmax[to * channels + c], other = from * channels + c; other != best)
        near_kink(call, x[best] - x[other], scale);
  });
}

}  // namespace

Values forward_of(const Pool2d& op, const OpCall& call) {
  const int64_t channels = call.input_shapes[0][2];
  const Values& x = *call.inputs[0];
  const Windows windows = windows_of(op, call);
  Values y(windows.counts.size());
  if (op.kind == PoolKind::max) {
    find_kinks(op, call, windows);
    for (size_t i = 0; i < y.size(); ++i) y[i] = x[windows.argmax[i]];
    return y;
  }
  for_windows(call, op.kernel, stride_of(op), op.padding, 1, [&](int64_t to, int64_t from, int64_t) {
    for (int64_t c = 0; c < channels; ++c)
      y[to * channels + c] += x[from * channels + c] / divisor_of(op, windows, to * channels + c);
  });
  return y;
}

OpGradients backward_of(const Pool2d& op, const OpCall& call, const Values& dy) {
  const int64_t channels = call.input_shapes[0][2];
  const Windows windows = windows_of(op, call);
  Values dx(call.inputs[0]->size());
  if (op.kind == PoolKind::max) {
    for (size_t i = 0; i < dy.size(); ++i) dx[windows.argmax[i]] += dy[i];
    return {{dx}, {}};
  }
  for_windows(call, op.kernel, stride_of(op), op.padding, 1, [&](int64_t to, int64_t from, int64_t) {
    for (int64_t c = 0; c < channels; ++c)
      dx[from * channels + c] += dy[to * channels + c] / divisor_of(op, windows, to * channels + c);
  });
  return {{dx}, {}};
}

namespace {

struct Part {
  int64_t from;
  double weight;
};

/// What place `to` of one side of the output consists of.
std::vector<Part> parts_of(const Upsample2d& op, int64_t to, int64_t in, int64_t out) {
  double step = static_cast<double>(in) / static_cast<double>(out);
  if (op.scale != 0) step = 1 / op.scale;
  const auto at = static_cast<double>(to);
  // Between two pixels rounding decides; a thousandth of one keeps both from falling apart.
  if (op.kind == UpsampleKind::nearest)
    return {{std::min(static_cast<int64_t>(at * step + 1e-4), in - 1), 1}};
  double exact = (at + 0.5) * step - 0.5;
  if (op.align_corners)
    exact = out == 1 ? 0 : at * static_cast<double>(in - 1) / static_cast<double>(out - 1);
  exact = std::clamp(exact, 0.0, static_cast<double>(in - 1));
  const auto low = static_cast<int64_t>(exact);
  const double share = exact - static_cast<double>(low);
  if (low == in - 1) return {{low, 1}};
  return {{low, 1 - share}, {low + 1, share}};
}

/// Calls work(element of the output, element of the input, weight).
template <class Work>
void for_parts(const Upsample2d& op, const OpCall& call, const Work& work) {
  const Shape &in = call.input_shapes[0], &out = call.output_shape;
  for (int64_t s = 0; s < call.samples; ++s)
    for (int64_t h = 0; h < out[0]; ++h)
      for (int64_t w = 0; w < out[1]; ++w)
        for (const Part& row : parts_of(op, h, in[0], out[0]))
          for (const Part& column : parts_of(op, w, in[1], out[1]))
            for (int64_t c = 0; c < in[2]; ++c)
              work(((s * out[0] + h) * out[1] + w) * out[2] + c,
                   ((s * in[0] + row.from) * in[1] + column.from) * in[2] + c, row.weight * column.weight);
}

}  // namespace

Values forward_of(const Upsample2d& op, const OpCall& call) {
  Values y(static_cast<size_t>(call.samples * call.output_shape.count()));
  for_parts(op, call,
            [&](int64_t to, int64_t from, double weight) { y[to] += weight * (*call.inputs[0])[from]; });
  return y;
}

OpGradients backward_of(const Upsample2d& op, const OpCall& call, const Values& dy) {
  Values dx(call.inputs[0]->size());
  for_parts(op, call, [&](int64_t to, int64_t from, double weight) { dx[from] += weight * dy[to]; });
  return {{dx}, {}};
}

}  // namespace lockstep::net
