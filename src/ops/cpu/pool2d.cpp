#include "ops/pool2d.h"

#include <algorithm>
#include <cstring>

#include "ops/cpu/parallel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

/// The input pixels under one output pixel, without padding.
struct Window {
  int64_t top, bottom, left, right;
  int64_t count() const { return (bottom - top) * (right - left); }
};

struct Geometry : PoolGeometry {
  using PoolGeometry::PoolGeometry;

  /// Of each pixel of `window` in its average.
  float share(const Window& window) const {
    return 1.0f / static_cast<float>(count_include_pad ? kernel * kernel : window.count());
  }

  /// Calls work(place of the output pixel, window) for the pixels of one sample in order.
  template <class Work>
  void for_windows(const Work& work) const {
    for (int64_t row = 0; row < out_height; ++row) {
      const int64_t top = row * stride - padding;
      for (int64_t column = 0; column < out_width; ++column) {
        const int64_t left = column * stride - padding;
        work(row * out_width + column, Window{std::max<int64_t>(top, 0), std::min(top + kernel, height),
                                              std::max<int64_t>(left, 0), std::min(left + kernel, width)});
      }
    }
  }
  /// Calls work(place of the input pixel) for the pixels of `window` in order.
  template <class Work>
  void for_pixels(const Window& window, const Work& work) const {
    for (int64_t row = window.top; row < window.bottom; ++row)
      for (int64_t column = window.left; column < window.right; ++column) work(row * width + column);
  }
};

// Sixteen channels at once, and the places of pixels in each.
constexpr int64_t kChannels = 16;
using Values [[gnu::vector_size(kChannels * 4)]] = float;
using Places [[gnu::vector_size(kChannels * 4)]] = int32_t;

/// The channels at `from`, or, if fewer than sixteen are `left` there, those and zeros.
[[gnu::always_inline]] inline Values load_channels(const float* from, int64_t left) {
  Values values{};
  if (left >= kChannels)
    std::memcpy(&values, from, sizeof values);
  else
    for (int64_t c = 0; c < left; ++c) values[c] = from[c];
  return values;
}

/// Of equal values the first wins; a NaN wins over all, so that it shows. argmax holds pixels of the sample.
/// Registers are filled whole even if fewer channels are left: the lanes beyond them work on values of the
/// next pixel, and what they write there is overwritten when its turn comes.
/// (Twice as fast with 6 to 20 channels as a loop over the channels, even with 64.)
void max_forward(const Geometry& g, const float* x, float* y, int32_t* argmax) {
  const auto load_whole = [x, size = g.input_size()](int64_t i) { return load_channels(x + i, size - i); };
  g.for_windows([&](int64_t pixel, const Window& window) {
    for (int64_t c = 0; c < g.channels; c += kChannels) {
      const auto first = static_cast<int32_t>(window.top * g.width + window.left);
      Values best = load_whole(first * g.channels + c);
      Places place = Places{} + first;
      g.for_pixels(window, [&](int64_t candidate) {
        const Values value = load_whole(candidate * g.channels + c);
        const Places better = (value > best) | (value != value);
        best = better ? value : best;
        place = better ? Places{} + static_cast<int32_t>(candidate) : place;
      });
      const int64_t i = pixel * g.channels + c;
      const auto bytes = static_cast<size_t>(std::min(kChannels, g.output_size() - i)) * sizeof(float);
      if (bytes == sizeof(Values)) {
        std::memcpy(y + i, &best, sizeof(Values));
        std::memcpy(argmax + i, &place, sizeof(Places));
      } else {
        std::memcpy(y + i, &best, bytes);
        std::memcpy(argmax + i, &place, bytes);
      }
    }
  });
}

void max_backward(const Geometry& g, const float* dy, const int32_t* argmax, float* dx) {
  std::fill(dx, dx + g.input_size(), 0.0f);
  const int64_t pixels = g.out_height * g.out_width;
  for (int64_t pixel = 0; pixel < pixels; ++pixel)
    for (int64_t c = 0; c < g.channels; ++c) {
      const int64_t i = pixel * g.channels + c;
      dx[argmax[i] * g.channels + c] += dy[i];
    }
}

void average_forward(const Geometry& g, const float* x, float* y) {
  g.for_windows([&](int64_t pixel, const Window& window) {
    float* __restrict sum = y + pixel * g.channels;
    std::fill(sum, sum + g.channels, 0.0f);
    g.for_pixels(window, [&](int64_t place) {
      const float* __restrict value = x + place * g.channels;
      for (int64_t c = 0; c < g.channels; ++c) sum[c] += value[c];
    });
    const float share = g.share(window);
    for (int64_t c = 0; c < g.channels; ++c) sum[c] *= share;
  });
}

void average_backward(const Geometry& g, const float* dy, float* dx) {
  std::fill(dx, dx + g.input_size(), 0.0f);
  g.for_windows([&](int64_t pixel, const Window& window) {
    const float share = g.share(window);
    const float* __restrict gradient = dy + pixel * g.channels;
    g.for_pixels(window, [&](int64_t place) {
      float* __restrict sum = dx + place * g.channels;
      for (int64_t c = 0; c < g.channels; ++c) sum[c] += gradient[c] * share;
    });
  });
}

class MaxPool2dKernel : public Kernel {
 public:
  MaxPool2dKernel(const Geometry& geometry, const KernelOptions& options)
      : geometry_(geometry), batch_(options.batch), threads_(options.intra_op_threads) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, x = arguments.inputs[0].as<const float>(), y = arguments.outputs[0].as<float>(),
                   argmax = arguments.auxiliary[0].as<int32_t>()] {
      parallel_for(threads_, batch_, [=, &g = geometry_](int64_t sample) {
        max_forward(g, x + sample * g.input_size(), y + sample * g.output_size(),
                    argmax + sample * g.output_size());
      });
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([this, dy = arguments.output_gradients[0].as<const float>(),
                   argmax = arguments.auxiliary[0].as<const int32_t>(),
                   dx = arguments.input_gradients[0].as<float>()] {
      parallel_for(threads_, batch_, [=, &g = geometry_](int64_t sample) {
        max_backward(g, dy + sample * g.output_size(), argmax + sample * g.output_size(),
                     dx + sample * g.input_size());
      });
    });
  }

 private:
  Geometry geometry_;
  int64_t batch_;
  int threads_;
};

class AveragePool2dKernel : public Kernel {
 public:
  AveragePool2dKernel(const Geometry& geometry, const KernelOptions& options)
      : geometry_(geometry), batch_(options.batch), threads_(options.intra_op_threads) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, x = arguments.inputs[0].as<const float>(), y = arguments.outputs[0].as<float>()] {
      parallel_for(threads_, batch_, [=, &g = geometry_](int64_t sample) {
        average_forward(g, x + sample * g.input_size(), y + sample * g.output_size());
      });
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([this, dy = arguments.output_gradients[0].as<const float>(),
                   dx = arguments.input_gradients[0].as<float>()] {
      parallel_for(threads_, batch_, [=, &g = geometry_](int64_t sample) {
        average_backward(g, dy + sample * g.output_size(), dx + sample * g.input_size());
      });
    });
  }

 private:
  Geometry geometry_;
  int64_t batch_;
  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Pool2d& op, Inputs inputs, const KernelOptions& options) {
  const Geometry geometry(op, inputs[0].shape);
  if (op.kind == PoolKind::max) return std::make_unique<MaxPool2dKernel>(geometry, options);
  return std::make_unique<AveragePool2dKernel>(geometry, options);
}

}  // namespace lockstep::ops
