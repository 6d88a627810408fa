#include <algorithm>

#include "ops/cuda/floats.h"
#include "ops/parts.h"
#include "ops/pool2d.h"

namespace lockstep::ops {
namespace {

/// A sample's sizes as threads count with them; `packs` of channels lie in a pixel.
struct Sizes {
  int height, width, channels, packs;
  int out_height, out_width;
  int kernel, stride, padding;
  bool count_include_pad;

  Sizes(const PoolGeometry& g, int pack)
      : height(static_cast<int>(g.height)),
        width(static_cast<int>(g.width)),
        channels(static_cast<int>(g.channels)),
        packs(static_cast<int>(g.channels / pack)),
        out_height(static_cast<int>(g.out_height)),
        out_width(static_cast<int>(g.out_width)),
        kernel(static_cast<int>(g.kernel)),
        stride(static_cast<int>(g.stride)),
        padding(static_cast<int>(g.padding)),
        count_include_pad(g.count_include_pad) {}
};

/// Places begin ... end - 1 of one side of an image.
struct Range {
  int begin, end;
};

/// The input's places under output place `out`.
__device__ inline Range window_of(int out, const Sizes& s, int size) {
  const int begin = out * s.stride - s.padding, end = begin + s.kernel;
  return {begin < 0 ? 0 : begin, end < size ? end : size};
}

/// The output's places whose windows hold input place `in`.
__device__ inline Range windows_over(int in, const Sizes& s, int out_size) {
  const int before = in + s.padding - s.kernel, last = (in + s.padding) / s.stride;
  return {before < 0 ? 0 : before / s.stride + 1, last < out_size ? last + 1 : out_size};
}

/// Calls work(sample, row, column, first channel) for a thread's packs of channels; a block takes one row of
/// one image.
template <int N, class Work>
__device__ inline void for_row(int height, int width, const Sizes& s, const Work& work) {
  const int64_t sample = blockIdx.x / static_cast<unsigned>(height);
  const int row = static_cast<int>(blockIdx.x % static_cast<unsigned>(height));
  for (int i = static_cast<int>(threadIdx.x); i < width * s.packs; i += static_cast<int>(blockDim.x))
    work(sample, row, i / s.packs, i % s.packs * N);
}

template <int N>
__device__ inline void store_places(int32_t* to, const int32_t (&places)[N]) {
  constexpr int kEach = N < 4 ? N : 4;
#pragma unroll
  for (int i = 0; i < N; i += kEach) {
    device::Pack<int32_t, kEach> pack;
#pragma unroll
    for (int k = 0; k < kEach; ++k) pack.value[k] = places[i + k];
    *reinterpret_cast<device::Pack<int32_t, kEach>*>(to + i) = pack;
  }
}
template <int N>
__device__ inline void load_places(const int32_t* from, int32_t (&places)[N]) {
  constexpr int kEach = N < 4 ? N : 4;
#pragma unroll
  for (int i = 0; i < N; i += kEach) {
    const auto pack = load_pack<kEach>(from + i);
#pragma unroll
    for (int k = 0; k < kEach; ++k) places[i + k] = pack.value[k];
  }
}

// All of these read their inputs once from memory at the least: if windows overlap, from caches again.
// They write their outputs once.

/// Of equal values the first wins; a NaN wins over all, so that it shows. argmax holds pixels of the sample.
template <class T, int N>
__global__ void max_forward_kernel(const T* x, Sizes s, T* y, int32_t* argmax) {
  for_row<N>(s.out_height, s.out_width, s, [&](int64_t sample, int row, int column, int channel) {
    const T* image = x + sample * s.height * s.width * s.channels + channel;
    const Range rows = window_of(row, s, s.height), columns = window_of(column, s, s.width);
    float best[N];
    int32_t place[N];
    const int first = rows.begin * s.width + columns.begin;
    load_floats<N>(image + static_cast<int64_t>(first) * s.channels, best);
#pragma unroll
    for (int i = 0; i < N; ++i) place[i] = first;
    for (int h = rows.begin; h < rows.end; ++h)
      for (int w = columns.begin; w < columns.end; ++w) {
        const int candidate = h * s.width + w;
        float value[N];
        load_floats<N>(image + static_cast<int64_t>(candidate) * s.channels, value);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          const bool better = value[i] > best[i] || value[i] != value[i];
          best[i] = better ? value[i] : best[i];
          place[i] = better ? candidate : place[i];
        }
      }
    const int64_t at = ((sample * s.out_height + row) * s.out_width + column) * s.channels + channel;
    store_floats<N>(y + at, best);
    store_places<N>(argmax + at, place);
  });
}

/// Each pixel gathers from the windows over it, in their order.
template <class T, int N>
__global__ void max_backward_kernel(const T* dy, const int32_t* argmax, Sizes s, T* dx) {
  for_row<N>(s.height, s.width, s, [&](int64_t sample, int row, int column, int channel) {
    const int64_t output = sample * s.out_height * s.out_width * s.channels + channel;
    const Range rows = windows_over(row, s, s.out_height), columns = windows_over(column, s, s.out_width);
    const int32_t here = row * s.width + column;
    float sum[N] = {};
    for (int h = rows.begin; h < rows.end; ++h)
      for (int w = columns.begin; w < columns.end; ++w) {
        const int64_t at = output + static_cast<int64_t>(h * s.out_width + w) * s.channels;
        float gradient[N];
        int32_t place[N];
        load_floats<N>(dy + at, gradient);
        load_places<N>(argmax + at, place);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += place[i] == here ? gradient[i] : 0.0f;
      }
    store_floats<N>(dx + ((sample * s.height + row) * s.width + column) * s.channels + channel, sum);
  });
}

__device__ inline float share_of(Range rows, Range columns, const Sizes& s) {
  const int64_t count = s.count_include_pad ? static_cast<int64_t>(s.kernel) * s.kernel
                                            : (rows.end - rows.begin) * (columns.end - columns.begin);
  return 1.0f / static_cast<float>(count);
}

template <class T, int N>
__global__ void average_forward_kernel(const T* x, Sizes s, T* y) {
  for_row<N>(s.out_height, s.out_width, s, [&](int64_t sample, int row, int column, int channel) {
    const T* image = x + sample * s.height * s.width * s.channels + channel;
    const Range rows = window_of(row, s, s.height), columns = window_of(column, s, s.width);
    float sum[N] = {};
    for (int h = rows.begin; h < rows.end; ++h)
      for (int w = columns.begin; w < columns.end; ++w) {
        float value[N];
        load_floats<N>(image + static_cast<int64_t>(h * s.width + w) * s.channels, value);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += value[i];
      }
    const float share = share_of(rows, columns, s);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] *= share;
    store_floats<N>(y + ((sample * s.out_height + row) * s.out_width + column) * s.channels + channel, sum);
  });
}

template <class T, int N>
__global__ void average_backward_kernel(const T* dy, Sizes s, T* dx) {
  for_row<N>(s.height, s.width, s, [&](int64_t sample, int row, int column, int channel) {
    const int64_t output = sample * s.out_height * s.out_width * s.channels + channel;
    const Range rows = windows_over(row, s, s.out_height), columns = windows_over(column, s, s.out_width);
    float sum[N] = {};
    for (int h = rows.begin; h < rows.end; ++h)
      for (int w = columns.begin; w < columns.end; ++w) {
        float gradient[N];
        load_floats<N>(dy + output + static_cast<int64_t>(h * s.out_width + w) * s.channels, gradient);
        const float share = share_of(window_of(h, s, s.height), window_of(w, s, s.width), s);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] += gradient[i] * share;
      }
    store_floats<N>(dx + ((sample * s.height + row) * s.width + column) * s.channels + channel, sum);
  });
}

class Pool2dKernel : public Kernel {
 public:
  Pool2dKernel(const Pool2d& op, const Shape& image, const KernelOptions& options)
      : is_max_(op.kind == PoolKind::max),
        geometry_(op, image),
        batch_(options.batch),
        dtype_(options.compute) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    with_element_type_and_pack(dtype_, geometry_.channels,
                               [&]<class T, int N>(T, std::integral_constant<int, N>) {
                                 const Sizes s(geometry_, N);
                                 const auto* x = arguments.inputs[0].as<const T>();
                                 auto* y = arguments.outputs[0].as<T>();
                                 const device::Grid grid = grid_of(s.out_height, s.out_width * s.packs);
                                 if (is_max_)
                                   device::launch(stream, grid, max_forward_kernel<T, N>, x, s, y,
                                                  arguments.auxiliary[0].as<int32_t>());
                                 else
                                   device::launch(stream, grid, average_forward_kernel<T, N>, x, s, y);
                               });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    with_element_type_and_pack(dtype_, geometry_.channels,
                               [&]<class T, int N>(T, std::integral_constant<int, N>) {
                                 const Sizes s(geometry_, N);
                                 const auto* dy = arguments.output_gradients[0].as<const T>();
                                 auto* dx = arguments.input_gradients[0].as<T>();
                                 const device::Grid grid = grid_of(s.height, s.width * s.packs);
                                 if (is_max_)
                                   device::launch(stream, grid, max_backward_kernel<T, N>, dy,
                                                  arguments.auxiliary[0].as<const int32_t>(), s, dx);
                                 else
                                   device::launch(stream, grid, average_backward_kernel<T, N>, dy, s, dx);
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

  bool is_max_;
  PoolGeometry geometry_;
  int64_t batch_;
  DType dtype_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Pool2d& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<Pool2dKernel>(op, inputs[0].shape, options);
}

}  // namespace lockstep::ops
