#include <algorithm>

#include "ops/cuda/floats.h"
#include "ops/parts.h"
#include "ops/upsample2d.h"

namespace lockstep::ops {
namespace {

/// A sample's sizes as threads count with them; `packs` of channels lie in a pixel.
struct Sizes {
  UpsampleAxis rows, columns;
  int channels, packs;

  Sizes(const UpsampleGeometry& g, int pack)
      : rows(g.rows),
        columns(g.columns),
        channels(static_cast<int>(g.channels)),
        packs(static_cast<int>(g.channels / pack)) {}
};

/// Calls work(sample, row, column, first channel) for a thread's packs of channels; a block takes one row of
/// one image.
template <int N, class Work>
__device__ inline void for_row(int height, int width, const Sizes& s, const Work& work) {
  const int64_t sample = blockIdx.x / static_cast<unsigned>(height);
  const int row = static_cast<int>(blockIdx.x % static_cast<unsigned>(height));
  for (int i = static_cast<int>(threadIdx.x); i < width * s.packs; i += static_cast<int>(blockDim.x))
    work(sample, row, i / s.packs, i % s.packs * N);
}

/// Reads neighboring pixels from caches, and writes its output once.
template <class T, int N>
__global__ void upsample_kernel(const T* x, Sizes s, T* y) {
  for_row<N>(s.rows.out, s.columns.out, s, [&](int64_t sample, int row, int column, int channel) {
    const T* image = x + sample * s.rows.in * s.columns.in * s.channels + channel;
    const AxisSource above = s.rows.source(row), beside = s.columns.source(column);
    const auto load = [&](int h, int w, float(&to)[N]) {
      load_floats<N>(image + (static_cast<int64_t>(h) * s.columns.in + w) * s.channels, to);
    };
    float values[N];
    load(above.low, beside.low, values);
    if (s.rows.kind == UpsampleKind::bilinear) {
      float below[N], right[N], corner[N];
      load(above.high, beside.low, below);
      load(above.low, beside.high, right);
      load(above.high, beside.high, corner);
      const float up = 1.0f - above.share, left = 1.0f - beside.share;
#pragma unroll
      for (int i = 0; i < N; ++i)
        values[i] = left * (up * values[i] + above.share * below[i]) +
                    beside.share * (up * right[i] + above.share * corner[i]);
    }
    store_floats<N>(y + ((sample * s.rows.out + row) * s.columns.out + column) * s.channels + channel,
                    values);
  });
}

/// Each pixel of the input gathers from those that were made of it, in their order.
template <class T, int N>
__global__ void gather_kernel(const T* dy, Sizes s, T* dx) {
  for_row<N>(s.rows.in, s.columns.in, s, [&](int64_t sample, int row, int column, int channel) {
    const T* gradients = dy + sample * s.rows.out * s.columns.out * s.channels + channel;
    const int first_row = s.rows.first_reader(row), end_row = s.rows.end_of_readers(row);
    const int first_column = s.columns.first_reader(column), end_column = s.columns.end_of_readers(column);
    float sum[N] = {};
    for (int w = first_column; w < end_column; ++w) {
      float of_column[N] = {};
      for (int h = first_row; h < end_row; ++h) {
        float gradient[N];
        load_floats<N>(gradients + (static_cast<int64_t>(h) * s.columns.out + w) * s.channels, gradient);
        const float weight = s.rows.weight(h, row);
#pragma unroll
        for (int i = 0; i < N; ++i) of_column[i] += weight * gradient[i];
      }
      const float weight = s.columns.weight(w, column);
#pragma unroll
      for (int i = 0; i < N; ++i) sum[i] += weight * of_column[i];
    }
    store_floats<N>(dx + ((sample * s.rows.in + row) * s.columns.in + column) * s.channels + channel, sum);
  });
}

class Upsample2dKernel : public Kernel {
 public:
  Upsample2dKernel(const Upsample2d& op, const Shape& image, const KernelOptions& options)
      : geometry_(op, image), batch_(options.batch), dtype_(options.compute) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    with_element_type_and_pack(
        dtype_, geometry_.channels, [&]<class T, int N>(T, std::integral_constant<int, N>) {
          const Sizes s(geometry_, N);
          device::launch(stream, grid_of(s.rows.out, int64_t{s.columns.out} * s.packs), upsample_kernel<T, N>,
                         arguments.inputs[0].as<const T>(), s, arguments.outputs[0].as<T>());
        });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    with_element_type_and_pack(
        dtype_, geometry_.channels, [&]<class T, int N>(T, std::integral_constant<int, N>) {
          const Sizes s(geometry_, N);
          device::launch(stream, grid_of(s.rows.in, int64_t{s.columns.in} * s.packs), gather_kernel<T, N>,
                         arguments.output_gradients[0].as<const T>(), s,
                         arguments.input_gradients[0].as<T>());
        });
  }

 private:
  /// A block for each row of each image, as wide as the row but not wider than is useful.
  device::Grid grid_of(int64_t height, int64_t packs_in_row) const {
    constexpr int64_t kMostThreads = 256;
    return {
        .blocks = static_cast<unsigned>(batch_ * height),
        .threads = static_cast<unsigned>(std::min(
            kMostThreads, (packs_in_row + device::kWarpSize - 1) / device::kWarpSize * device::kWarpSize))};
  }

  UpsampleGeometry geometry_;
  int64_t batch_;
  DType dtype_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Upsample2d& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<Upsample2dKernel>(op, inputs[0].shape, options);
}

}  // namespace lockstep::ops
