#include <cmath>

#include "base/ensure.h"
#include "ops/cuda/column_reduction.h"
#include "ops/cuda/replica_sum.h"
#include "ops/parts.h"

namespace lockstep::ops {
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
    threads = kWarp ? device::kWarpSize : static_cast<int>(blockDim.x);
    thread = kWarp ? t % device::kWarpSize : t;
    first = kWarp ? static_cast<int64_t>(blockIdx.x) * kWarps + t / device::kWarpSize : blockIdx.x;
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
      return device::warp_sum(value);
    } else {
      return device::block_sum(value, scratch);
    }
  }
};

/// As the ops that add two tensors round it.
template <class T, int N>
__device__ inline device::Pack<T, N> rounded_sum(const device::Pack<T, N>& a, const device::Pack<T, N>& b) {
  device::Pack<T, N> sum;
#pragma unroll
  for (int i = 0; i < N; ++i)
    sum.value[i] = static_cast<T>(static_cast<float>(a.value[i]) + static_cast<float>(b.value[i]));
  return sum;
}

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

template <class T>
struct ForwardArguments {
  const T *x, *addend;         // what is normalised is x, or where the kernel adds their sum,
  T* sum;                      // which is then written here
  const float *weight, *bias;  // no bias: null
  T* y;
  float *means, *inverses;  // RMS norm: no means, null
  int64_t rows;
  int width;
  float epsilon;
};

/// Reads x and writes y once; where it adds, also reads the addend and writes the sum once. A row stays in
/// registers, so that its variance is taken from the mean in a second pass, without cancellation; what does
/// not fit is read again.
template <class T, int N, int kPacks, bool kWarp, bool kAdds>
__global__ void __launch_bounds__(kWarp ? kWarps* device::kWarpSize : kMostThreads)
    forward_kernel(ForwardArguments<T> a) {
  // Packs of a sum's terms that are under way together.
  constexpr int kTogether = kWarp ? (N > 1 ? kPacks : 8) : (N > 1 ? 2 : 4);
  __shared__ float scratch[2][device::kWarpSize + 1];
  const RowGroup<N, kPacks, kWarp> group(a.width);
  const float share = 1.0f / static_cast<float>(a.width);
  for (int64_t row = group.first; row < a.rows; row += group.step) {
    const int64_t begin = row * a.width;
    float kept[kPacks][N];
    if constexpr (kAdds) {
#pragma unroll
      for (int first = 0; first < kPacks; first += kTogether) {
        device::Pack<T, N> x[kTogether], addend[kTogether];
#pragma unroll
        for (int k = 0; k < kTogether; ++k)
          if (const int c = group.column(first + k); c < a.width) {
            x[k] = load_pack<N>(a.x + begin + c);
            addend[k] = load_pack<N>(a.addend + begin + c);
          }
#pragma unroll
        for (int k = 0; k < kTogether; ++k)
          if (const int c = group.column(first + k); c < a.width) {
            const device::Pack<T, N> sum = rounded_sum(x[k], addend[k]);
            store_pack(a.sum + begin + c, sum);
            widen(sum, kept[first + k]);
          }
      }
    } else {
#pragma unroll
      for (int k = 0; k < kPacks; ++k)
        if (group.column(k) < a.width) load_floats<N>(a.x + begin + group.column(k), kept[k]);
    }
    const bool centered = a.means != nullptr;
    float sum = 0;
    if (centered) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k)
        if (group.column(k) < a.width) sum += sum_of(kept[k]);
    }
    group.for_rest([&](int c) {
      device::Pack<T, N> x = load_pack<N>(a.x + begin + c);
      if constexpr (kAdds) {
        x = rounded_sum(x, load_pack<N>(a.addend + begin + c));
        store_pack(a.sum + begin + c, x);
      }
      float values[N];
      widen(x, values);
      sum += sum_of(values);
    });
    const float mean = centered ? group.sum(sum, scratch[0]) * share : 0.0f;
    if (!centered && !kWarp) __syncthreads();  // the scratch of the sum below may still be read

    // A thread reads again only what it has written itself.
    const T* const again = (kAdds ? a.sum : a.x) + begin;
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) squares += squares_of(kept[k], mean);
    group.for_rest([&](int c) {
      float values[N];
      load_floats<N>(again + c, values);
      squares += squares_of(values, mean);
    });
    const float inverse = 1.0f / std::sqrt(group.sum(squares, scratch[1]) * share + a.epsilon);
    if (group.thread == 0) {
      if (centered) a.means[row] = mean;
      a.inverses[row] = inverse;
    }

    const auto write = [&](int c, const float(&values)[N]) {
      float w[N], b[N], result[N];
      load_floats<N>(a.weight + c, w);
      if (a.bias != nullptr) load_floats<N>(a.bias + c, b);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normalized = (values[i] - mean) * inverse;
        result[i] = a.bias != nullptr ? std::fma(normalized, w[i], b[i]) : normalized * w[i];
      }
      store_floats<N>(a.y + begin + c, result);
    };
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) write(group.column(k), kept[k]);
    group.for_rest([&](int c) {
      float values[N];
      load_floats<N>(again + c, values);
      write(c, values);
    });
  }
}

template <class T>
struct BackwardArguments {
  const T *x, *dy;
  const float *weight, *means, *inverses;  // RMS norm: no means, null
  T* dx;                                   // null where not wanted
  const T* addend;           // null, or what is added to dx: the gradient that another reader of x gives it
  SumPair<float>* partials;  // [virtual replicas, blocks, width]: of dy n, and of dy
  int64_t rows;              // of a virtual replica, whose blocks those of one blockIdx.y are
  int width;
};

/// Blocks that a multiprocessor is to hold at the least, which limits registers. The longer the rows of
/// warps, the fewer blocks have as much under way.
constexpr int least_blocks(int group, int elements, int packs) {
  if (group != device::kWarpSize || elements == 1 || packs * elements > 24) return 1;
  return packs * elements > 8 ? 2 : 4;
}

/// With g = dy weight and n = (x - mean) inverse: dx = inverse (g - mean(g) - n mean(g n)); of an RMS norm,
/// mean and mean(g) are 0. Reads x, dy and, where there is one, the addend, and writes dx once; on the way
/// threads add up dy n and dy of their columns over the block's rows.
///
/// kGroup: a warp's size, or the most threads that a block may have.
template <class T, int N, int kPacks, int kGroup>
__global__ void __launch_bounds__(kGroup == device::kWarpSize ? kWarps * device::kWarpSize : kGroup,
                                  least_blocks(kGroup, N, kPacks)) backward_kernel(BackwardArguments<T> a) {
  constexpr bool kWarp = kGroup == device::kWarpSize;
  __shared__ float scratch[2][device::kWarpSize + 1];
  const RowGroup<N, kPacks, kWarp> group(a.width);
  const float share = 1.0f / static_cast<float>(a.width);
  const bool adds = a.addend != nullptr && a.dx != nullptr;
  SumPair<float>* const of_block =
      a.partials + (int64_t{blockIdx.y} * gridDim.x + blockIdx.x) * int64_t{a.width};
  const int64_t first = blockIdx.y * a.rows + group.first, end = (blockIdx.y + int64_t{1}) * a.rows;
  SumPair<float> sums[kPacks][N];
  for (int64_t row = first; row < end; row += group.step) {
    const int64_t begin = row * a.width;
    const T *row_x = a.x + begin, *row_dy = a.dy + begin;
    device::Pack<T, N> x[kPacks], dy[kPacks];
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) {
        x[k] = load_pack<N>(row_x + group.column(k));
        dy[k] = load_pack<N>(row_dy + group.column(k));
        if (adds) device::prefetch(a.addend + begin + group.column(k));
      }
    const float mean = a.means == nullptr ? 0.0f : a.means[row], inverse = a.inverses[row];

    float sum_g = 0, sum_gn = 0;
    const auto add = [&](int c, const device::Pack<T, N>& of_x, const device::Pack<T, N>& of_dy,
                         SumPair<float>(&to)[N]) {
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
      if (row != first)
        for (int i = 0; i < N; ++i) of_columns[i] = of_block[c + i];
      add(c, load_pack<N>(row_x + c), load_pack<N>(row_dy + c), of_columns);
      for (int i = 0; i < N; ++i) of_block[c + i] = of_columns[i];
    });

    if (a.dx == nullptr) continue;
    const float mean_g = group.sum(a.means == nullptr ? 0.0f : sum_g, scratch[0]) * share,
                mean_gn = group.sum(sum_gn, scratch[1]) * share;
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      device::compute_anew(x[k]);
      device::compute_anew(dy[k]);
    }
    const auto gradient_of_x = [&](int c, const device::Pack<T, N>& of_x, const device::Pack<T, N>& of_dy) {
      float w[N];
      load_floats<N>(a.weight + c, w);
      device::Pack<T, N> result;
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float normalized = (static_cast<float>(of_x.value[i]) - mean) * inverse;
        result.value[i] = static_cast<T>(
            inverse * std::fma(-normalized, mean_gn, static_cast<float>(of_dy.value[i]) * w[i] - mean_g));
      }
      return result;
    };
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) x[k] = gradient_of_x(group.column(k), x[k], dy[k]);
    // The addend is read when dy has been used, and takes its registers.
    if (adds) {
#pragma unroll
      for (int k = 0; k < kPacks; ++k)
        if (group.column(k) < a.width) dy[k] = load_pack<N>(a.addend + begin + group.column(k));
#pragma unroll
      for (int k = 0; k < kPacks; ++k)
        if (group.column(k) < a.width) x[k] = rounded_sum(x[k], dy[k]);
    }
    T* const row_dx = a.dx + begin;
#pragma unroll
    for (int k = 0; k < kPacks; ++k)
      if (group.column(k) < a.width) store_pack(row_dx + group.column(k), x[k]);
    group.for_rest([&](int c) {
      device::Pack<T, N> result = gradient_of_x(c, load_pack<N>(row_x + c), load_pack<N>(row_dy + c));
      if (adds) result = rounded_sum(result, load_pack<N>(a.addend + begin + c));
      store_pack(row_dx + c, result);
    });
  }

  if constexpr (kWarp) {
    // The block's warps have sums of the same columns: they add them up one after the other.
    auto* joined = device::dynamic_shared<SumPair<float>>();
    for (int warp = 0; warp < kWarps; ++warp) {
      if (static_cast<int>(threadIdx.x) / device::kWarpSize == warp) {
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
    for (int c = static_cast<int>(threadIdx.x); c < a.width; c += kWarps * device::kWarpSize)
      of_block[c] = joined[c];
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
  float *dweight, *dbias;  // [virtual replicas, width]; no bias: null
  int64_t width;
  bool accumulate;

  __device__ void operator()(int64_t c, const SumPair<double>& sums) const {
    const int64_t at = blockIdx.y * width + c;
    add_or_set(dweight[at], sums.first, accumulate);
    if (dbias != nullptr) add_or_set(dbias[at], sums.second, accumulate);
  }
};

/// How rows are shared out; a function of their number and length alone, since sums over rows follow it.
struct Layout {
  bool by_warps;
  unsigned threads;
  int64_t groups_per_block;

  Layout(int64_t width, int64_t values_per_thread) : by_warps(width <= kWarpWidth) {
    if (by_warps) {
      threads = kWarps * device::kWarpSize;
      groups_per_block = kWarps;
      return;
    }
    const int64_t per_warp = values_per_thread * device::kWarpSize;
    threads = static_cast<unsigned>(
                  std::min<int64_t>(kMostThreads / device::kWarpSize, (width + per_warp - 1) / per_warp)) *
              device::kWarpSize;
    groups_per_block = 1;
  }
};

/// What distinguishes the kinds of norms.
struct NormForm {
  float epsilon;
  bool centered;  // rows have means, which the first auxiliary tensor holds
  bool bias;
};

class NormKernel : public Kernel {
 public:
  NormKernel(const NormForm& form, const TensorSpec& input, const KernelOptions& options)
      : form_(form),
        fused_(options.fused),
        dtype_(options.compute),
        replicas_(options.virtual_replicas),
        rows_(input.shape.count() / input.shape[-1] * (options.batch / options.virtual_replicas)),
        width_(input.shape[-1]) {}

  /// Partial sums, and of several virtual replicas the gradients of each.
  int64_t workspace_bytes(KernelPhase phase) const override {
    if (phase != KernelPhase::backward_input) return 0;
    const int64_t gradients = replicas_ == 1 ? 0 : 2 * replicas_ * width_ * size_of(DType::float32);
    return partial_bytes() + gradients;
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
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

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    const Layout layout = backward_layout();
    const int64_t blocks = backward_blocks(layout);
    auto* partials = static_cast<SumPair<float>*>(arguments.workspace);
    with_element_type_and_pack(dtype_, width_, [&]<class T, int N>(T, std::integral_constant<int, N>) {
      const BackwardArguments<T> a{arguments.inputs[0].as<const T>(),
                                   arguments.output_gradients[0].as<const T>(),
                                   arguments.parameters[0].as<const float>(),
                                   means_of<const float>(arguments),
                                   inverses_of<const float>(arguments),
                                   arguments.input_gradients[0].as<T>(),
                                   fused_.fork_before ? arguments.output_gradients[1].as<const T>() : nullptr,
                                   partials,
                                   rows_,
                                   static_cast<int>(width_)};
      const device::Grid grid{
          .blocks = dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(replicas_)),
          .threads = layout.threads,
          .shared_bytes = layout.by_warps ? static_cast<size_t>(width_) * sizeof(SumPair<float>) : 0};
      if (layout.threads > 512)
        device::launch(stream, grid, backward_kernel<T, N, kBackwardValues / N, kMostThreads>, a);
      else if (!layout.by_warps)
        device::launch(stream, grid, backward_kernel<T, N, kBackwardValues / N, 512>, a);
      else if (N > 1 && width_ <= 256)
        device::launch(stream, grid, backward_kernel<T, N, (N > 1 ? 8 : 32) / N, device::kWarpSize>, a);
      else if (N > 1 && width_ <= 768)
        device::launch(stream, grid, backward_kernel<T, N, (N > 1 ? 24 : 32) / N, device::kWarpSize>, a);
      else
        device::launch(stream, grid, backward_kernel<T, N, 32 / N, device::kWarpSize>, a);
    });
    finish(arguments, partials, static_cast<int>(blocks), stream);
  }

 private:
  // That a thread of a block's row keeps in registers; backward keeps four numbers for each.
  static constexpr int kForwardValues = 16, kBackwardValues = 8;

  template <class T, int N, int kPacks, bool kWarp>
  void launch_forward(const KernelArguments& arguments, device::Stream& stream) const {
    const Layout layout(width_, kForwardValues);
    device::launch(stream,
                   {.blocks = device::blocks_for(replicas_ * rows_, layout.groups_per_block, INT32_MAX),
                    .threads = layout.threads},
                   fused_.add_before ? forward_kernel<T, N, kPacks, kWarp, true>
                                     : forward_kernel<T, N, kPacks, kWarp, false>,
                   ForwardArguments<T>{arguments.inputs[0].as<const T>(),
                                       fused_.add_before ? arguments.inputs[1].as<const T>() : nullptr,
                                       fused_.add_before ? arguments.outputs[1].as<T>() : nullptr,
                                       arguments.parameters[0].as<const float>(),
                                       form_.bias ? arguments.parameters[1].as<const float>() : nullptr,
                                       arguments.outputs[0].as<T>(), means_of<float>(arguments),
                                       inverses_of<float>(arguments), replicas_ * rows_,
                                       static_cast<int>(width_), form_.epsilon});
  }

  void finish(const KernelArguments& arguments, const SumPair<float>* partials, int blocks,
              device::Stream& stream) const {
    float *dweight = arguments.parameter_gradients[0].as<float>(),
          *dbias = form_.bias ? arguments.parameter_gradients[1].as<float>() : nullptr;
    if (replicas_ == 1)
      return fold_columns(stream, partials, blocks, width_,
                          FinishParameters{dweight, dbias, width_, arguments.accumulate});
    ensure(!arguments.accumulate, "gradients of several virtual replicas are complete");
    auto* const each =
        reinterpret_cast<float*>(static_cast<std::byte*>(arguments.workspace) + partial_bytes());
    float* const each_bias = dbias == nullptr ? nullptr : each + replicas_ * width_;
    fold_columns(stream, partials, blocks, width_, FinishParameters{each, each_bias, width_, false},
                 replicas_);
    sum_replicas(each, width_, replicas_, width_, dweight, stream);
    if (dbias != nullptr) sum_replicas(each_bias, width_, replicas_, width_, dbias, stream);
  }

  template <class F>
  F* means_of(const KernelArguments& arguments) const {
    return form_.centered ? arguments.auxiliary[0].as<F>() : nullptr;
  }
  template <class F>
  F* inverses_of(const KernelArguments& arguments) const {
    return arguments.auxiliary[form_.centered ? 1 : 0].as<F>();
  }

  int64_t partial_bytes() const {
    const int64_t bytes = replicas_ * backward_blocks(backward_layout()) * width_ *
                          static_cast<int64_t>(sizeof(SumPair<float>));
    return (bytes + 15) / 16 * 16;
  }
  Layout backward_layout() const { return Layout(width_, kBackwardValues); }
  /// As many as fill a large GPU's 132 multiprocessors once or twice, since each leaves partial sums: two of
  /// eight warps on each, or four smaller ones or with short rows. Not as many as the device has: bits
  /// follow.
  int64_t backward_blocks(const Layout& layout) const {
    const bool small = layout.by_warps ? width_ <= 256 : layout.threads <= 256;
    const int64_t most = small ? 512 : 256;
    return std::min(most, (rows_ + layout.groups_per_block - 1) / layout.groups_per_block);
  }

  NormForm form_;
  FusedNeighbors fused_;
  DType dtype_;
  int replicas_;
  int64_t rows_;  ///< of a virtual replica
  int64_t width_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const LayerNorm& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<NormKernel>(NormForm{op.epsilon, true, op.bias}, inputs[0], options);
}

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const RmsNorm& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<NormKernel>(NormForm{op.epsilon, false, false}, inputs[0], options);
}

}  // namespace lockstep::ops
