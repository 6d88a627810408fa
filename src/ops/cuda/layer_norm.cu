#include <cmath>

#include "ops/cuda/column_reduction.h"
#include "ops/cuda/kernels.h"

namespace lockstep {
namespace {

constexpr int64_t kWarpWidth = 1024;  // rows up to here are a warp's each, longer ones a block's
constexpr int kWarps = 8;             // of a block whose warps have rows of their own
constexpr int kMostThreads = 1024;    // of a block that shares a row

/// The threads that share a row: a warp, or a block. They take packs of N elements in turn; a thread keeps
/// its first kPacks in registers. Only a block's rows may be longer than that.
template <int N, int kPacks, bool kWarp>
struct RowGroup {
  int width, threads, thread;
  int64_t first, step;  // rows

  __device__ explicit RowGroup(int width_) : width(width_) {
    const int t = static_cast<int>(threadIdx.x);
    threads = kWarp ? kWarpSize : static_cast<int>(blockDim.x);
    thread = kWarp ? t % kWarpSize : t;
    first = kWarp ? static_cast<int64_t>(blockIdx.x) * kWarps + t / kWarpSize : blockIdx.x;
    step = kWarp ? static_cast<int64_t>(gridDim.x) * kWarps : gridDim.x;
  }
  /// Where pack k of the thread begins.
  __device__ int column(int k) const { return (k * threads + thread) * N; }
  /// Calls work(column) for packs that are not kept.
  template <class Work>
  __device__ void for_rest(const Work& work) const {
    if constexpr (!kWarp)
      for (int c = column(kPacks); c < width; c += threads * N) work(c);
  }
  /// `scratch`: 33 values, used again only after another sum with other scratch.
  __device__ float sum(float value, float* scratch) const {
    if constexpr (kWarp) {
      return warp_sum(value);
    } else {
      return block_sum(value, scratch);
    }
  }
};

template <int N>
__device__ inline float sum_of(const float (&values)[N]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += values[i];
  return sum;
}
template <int N>
__device__ inline float squares_of(const float (&values)[N], float mean) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) sum = std::fma(values[i] - mean, values[i] - mean, sum);
  return sum;
}

/// Reads x and writes y once. A row stays in registers, so that its variance is taken from the mean in a
/// second pass, without cancellation; what does not fit is read again.
template <class T, int N, int kPacks, bool kWarp>
__global__ void __launch_bounds__(kWarp ? kWarps* kWarpSize : kMostThreads)
    forward_kernel(const T* x, const float* weight, const float* bias, int64_t rows, int width, float epsilon,
                   T* y, float* means, float* inverses) {
  __shared__ float scratch[2][kWarpSize + 1];
  const RowGroup<N, kPacks, kWarp> group(width);
  const float share = 1.0f / static_cast<float>(width);
  for (int64_t row = group.first; row < rows; row += group.step) {
    const T* from = x + row * width;
    float kept[kPacks][N];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < width) load_floats<N>(from + group.column(k), kept[k]);
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < width) sum += sum_of(kept[k]);
    group.for_rest([&](int c) {
      float values[N];
      load_floats<N>(from + c, values);
      sum += sum_of(values);
    });
    const float mean = group.sum(sum, scratch[0]) * share;

    float squares = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < width) squares += squares_of(kept[k], mean);
    group.for_rest([&](int c) {
      float values[N];
      load_floats<N>(from + c, values);
      squares += squares_of(values, mean);
    });
    const float inverse = 1.0f / std::sqrt(group.sum(squares, scratch[1]) * share + epsilon);
    if (group.thread == 0) {
      means[row] = mean;
      inverses[row] = inverse;
    }

    const auto write = [&](int c, const float(&values)[N]) {
      float w[N], b[N], result[N];
      load_floats<N>(weight + c, w);
      if (bias != nullptr) load_floats<N>(bias + c, b);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normalized = (values[i] - mean) * inverse;
        result[i] = bias != nullptr ? std::fma(normalized, w[i], b[i]) : normalized * w[i];
      }
      store_floats<N>(y + row * width + c, result);
    };
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < width) write(group.column(k), kept[k]);
    group.for_rest([&](int c) {
      float values[N];
      load_floats<N>(from + c, values);
      write(c, values);
    });
  }
}

template <class T>
struct BackwardArguments {
  const T *x, *dy;
  const float *weight, *means, *inverses;
  T* dx;                     // null where not wanted
  SumPair<float>* partials;  // [blocks, width]: of dy n, and of dy
  int64_t rows;
  int width;
};

/// With g = dy weight and n = (x - mean) inverse: dx = inverse (g - mean(g) - n mean(g n)). Reads x and dy
/// and writes dx once; on the way threads add up dy n and dy of their columns over the block's rows.
///
/// kGroup: a warp's size, or the most threads that a block may have. Where registers are too few for two
/// blocks of warps on a multiprocessor, one has as much under way by its longer rows.
template <class T, int N, int kPacks, int kGroup>
__global__ void __launch_bounds__(kGroup == kWarpSize ? kWarps * kWarpSize : kGroup,
                                  kGroup == kWarpSize && N > 1 && kPacks * N <= 24 ? 2 : 1)
    backward_kernel(BackwardArguments<T> a) {
  constexpr bool kWarp = kGroup == kWarpSize;
  __shared__ float scratch[2][kWarpSize + 1];
  const RowGroup<N, kPacks, kWarp> group(a.width);
  const float share = 1.0f / static_cast<float>(a.width);
  SumPair<float>* const of_block = a.partials + static_cast<int64_t>(blockIdx.x) * a.width;
  SumPair<float> sums[kPacks][N];
  for (int64_t row = group.first; row < a.rows; row += group.step) {
    const T *row_x = a.x + row * a.width, *row_dy = a.dy + row * a.width;
    Pack<T, N> x[kPacks], dy[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) {
        x[k] = load_pack<N>(row_x + group.column(k));
        dy[k] = load_pack<N>(row_dy + group.column(k));
      }
    const float mean = a.means[row], inverse = a.inverses[row];

    float sum_g = 0, sum_gn = 0;
    const auto add = [&](int c, const Pack<T, N>& of_x, const Pack<T, N>& of_dy, SumPair<float>(&to)[N]) {
      float w[N];
      load_floats<N>(a.weight + c, w);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float gradient = static_cast<float>(of_dy.value[i]);
        const float normalized = (static_cast<float>(of_x.value[i]) - mean) * inverse;
        const float g = gradient * w[i];
        sum_g += g;
        sum_gn = std::fma(g, normalized, sum_gn);
        to[i].first = std::fma(gradient, normalized, to[i].first);
        to[i].second += gradient;
      }
    };
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) add(group.column(k), x[k], dy[k], sums[k]);
    // Sums of columns beyond the registers are kept where they are to end up.
    group.for_rest([&](int c) {
      SumPair<float> of_columns[N];
      if (row != group.first)
        for (int i = 0; i < N; ++i) of_columns[i] = of_block[c + i];
      add(c, load_pack<N>(row_x + c), load_pack<N>(row_dy + c), of_columns);
      for (int i = 0; i < N; ++i) of_block[c + i] = of_columns[i];
    });

    if (a.dx == nullptr) continue;
    const float mean_g = group.sum(sum_g, scratch[0]) * share,
                mean_gn = group.sum(sum_gn, scratch[1]) * share;
    const auto write = [&](int c, const Pack<T, N>& of_x, const Pack<T, N>& of_dy) {
      float w[N], result[N];
      load_floats<N>(a.weight + c, w);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normalized = (static_cast<float>(of_x.value[i]) - mean) * inverse;
        result[i] =
            inverse * std::fma(-normalized, mean_gn, static_cast<float>(of_dy.value[i]) * w[i] - mean_g);
      }
      store_floats<N>(a.dx + row * a.width + c, result);
    };
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) write(group.column(k), x[k], dy[k]);
    group.for_rest([&](int c) { write(c, load_pack<N>(row_x + c), load_pack<N>(row_dy + c)); });
  }

  if constexpr (kWarp) {
    // The block's warps have sums of the same columns: they add them up one after the other.
    auto* joined = dynamic_shared<SumPair<float>>();
    for (int warp = 0; warp < kWarps; ++warp) {
      if (static_cast<int>(threadIdx.x) / kWarpSize == warp) {
#pragma unroll
        for (int k = 0; k < kPacks; ++k)
          if (group.column(k) < a.width) {
#pragma unroll
            for (int i = 0; i < N; ++i) {
              SumPair<float>& to = joined[group.column(k) + i];
              if (warp > 0) sums[k][i].join(to);
              to = sums[k][i];
            }
          }
      }
      __syncthreads();
    }
    for (int c = static_cast<int>(threadIdx.x); c < a.width; c += kWarps * kWarpSize) of_block[c] = joined[c];
  } else {
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) {
#pragma unroll
        for (int i = 0; i < N; ++i) of_block[group.column(k) + i] = sums[k][i];
      }
  }
}

struct FinishParameters {
  float *dweight, *dbias;  // no bias: null
  bool accumulate;

  __device__ void operator()(int64_t c, const SumPair<double>& sums) const {
    add_or_set(dweight[c], sums.first, accumulate);
    if (dbias != nullptr) add_or_set(dbias[c], sums.second, accumulate);
  }
};

/// How rows are shared out; a function of their number and length alone, since sums over rows follow it.
struct Layout {
  bool by_warps;
  unsigned threads;
  int64_t groups_per_block;

  Layout(int64_t width, int64_t values_per_thread) : by_warps(width <= kWarpWidth) {
    if (by_warps) {
      threads = kWarps * kWarpSize;
      groups_per_block = kWarps;
      return;
    }
    const int64_t per_warp = values_per_thread * kWarpSize;
    threads = static_cast<unsigned>(
                  std::min<int64_t>(kMostThreads / kWarpSize, (width + per_warp - 1) / per_warp)) *
              kWarpSize;
    groups_per_block = 1;
  }
};

class LayerNormKernel : public Kernel {
 public:
  LayerNormKernel(const LayerNorm& op, const TensorSpec& input, const KernelOptions& options)
      : op_(op),
        dtype_(options.compute),
        rows_(input.shape.count() / input.shape[-1] * options.batch),
        width_(input.shape[-1]) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    if (phase != KernelPhase::backward_input) return 0;
    return backward_blocks(backward_layout()) * width_ * static_cast<int64_t>(sizeof(SumPair<float>));
  }

  void forward(const KernelArguments& arguments, Stream& stream) override {
    with_element_type_and_pack(dtype_, width_, [&]<class T, int N>(T, std::integral_constant<int, N>) {
      // Short rows in few registers, so that more of them are under way; odd ones do not deserve kernels of
      // their own.
      if (width_ > kWarpWidth)
        launch_forward<T, N, kForwardValues / N, false>(arguments, stream);
      else if (N > 1 && width_ <= 256)
        launch_forward<T, N, (N > 1 ? 8 : 32) / N, true>(arguments, stream);
      else if (N > 1 && width_ <= 512)
        launch_forward<T, N, (N > 1 ? 16 : 32) / N, true>(arguments, stream);
      else
        launch_forward<T, N, 32 / N, true>(arguments, stream);
    });
  }

  void backward_input(const KernelArguments& arguments, Stream& stream) override {
    const Layout layout = backward_layout();
    const int64_t blocks = backward_blocks(layout);
    auto* partials = static_cast<SumPair<float>*>(arguments.workspace);
    with_element_type_and_pack(dtype_, width_, [&]<class T, int N>(T, std::integral_constant<int, N>) {
      const BackwardArguments<T> a{arguments.inputs[0].as<const T>(),
                                   arguments.output_gradients[0].as<const T>(),
                                   arguments.parameters[0].as<const float>(),
                                   arguments.auxiliary[0].as<const float>(),
                                   arguments.auxiliary[1].as<const float>(),
                                   arguments.input_gradients[0].as<T>(),
                                   partials,
                                   rows_,
                                   static_cast<int>(width_)};
      const Grid grid{
          .blocks = static_cast<unsigned>(blocks),
          .threads = layout.threads,
          .shared_bytes = layout.by_warps ? static_cast<size_t>(width_) * sizeof(SumPair<float>) : 0};
      if (layout.threads > 512)
        launch(stream, grid, backward_kernel<T, N, kBackwardValues / N, kMostThreads>, a);
      else if (!layout.by_warps)
        launch(stream, grid, backward_kernel<T, N, kBackwardValues / N, 512>, a);
      else if (N > 1 && width_ <= 256)
        launch(stream, grid, backward_kernel<T, N, (N > 1 ? 8 : 32) / N, kWarpSize>, a);
      else if (N > 1 && width_ <= 768)
        launch(stream, grid, backward_kernel<T, N, (N > 1 ? 24 : 32) / N, kWarpSize>, a);
      else
        launch(stream, grid, backward_kernel<T, N, 32 / N, kWarpSize>, a);
    });
    fold_columns(stream, partials, static_cast<int>(blocks), width_,
                 FinishParameters{arguments.parameter_gradients[0].as<float>(),
                                  op_.bias ? arguments.parameter_gradients[1].as<float>() : nullptr,
                                  arguments.accumulate});
  }

 private:
  // That a thread of a block's row keeps in registers; backward keeps four numbers for each.
  static constexpr int kForwardValues = 16, kBackwardValues = 8;

  template <class T, int N, int kPacks, bool kWarp>
  void launch_forward(const KernelArguments& arguments, Stream& stream) const {
    const Layout layout(width_, kForwardValues);
    launch(stream,
           {.blocks = blocks_for(rows_, layout.groups_per_block, INT32_MAX), .threads = layout.threads},
           forward_kernel<T, N, kPacks, kWarp>, arguments.inputs[0].as<const T>(),
           arguments.parameters[0].as<const float>(),
           op_.bias ? arguments.parameters[1].as<const float>() : nullptr, rows_, static_cast<int>(width_),
           op_.epsilon, arguments.outputs[0].as<T>(), arguments.auxiliary[0].as<float>(),
           arguments.auxiliary[1].as<float>());
  }

  Layout backward_layout() const { return Layout(width_, kBackwardValues); }
  /// As many as fill a large GPU once, since each leaves partial sums: two of eight warps on a
  /// multiprocessor, or as many smaller ones.
  int64_t backward_blocks(const Layout& layout) const {
    const int64_t most = layout.threads <= 256 && !layout.by_warps ? 512 : 256;
    return std::min(most, (rows_ + layout.groups_per_block - 1) / layout.groups_per_block);
  }

  LayerNorm op_;
  DType dtype_;
  int64_t rows_, width_;
};

}  // namespace

std::unique_ptr<Kernel> make_gpu_kernel(const LayerNorm& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<LayerNormKernel>(op, inputs[0], options);
}

}  // namespace lockstep
