#include <cmath>

#include "ops/batch_norm.h"
#include "ops/cuda/column_reduction.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

/// Moments of the block's rows, less row 0 of the matrix: if a column's mean is large, what is summed is
/// not. Reads x once: rows * columns elements.
template <class T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    moments_kernel(const T* x, ColumnGrid g, Moments<float>* partials) {
  const ColumnPlace<N> at(g);
  Moments<float> moments[N];
  float origin[N] = {};
  if (at.works) load_floats<N>(x + at.column, origin);
  float count = 0;
  const T* const from[] = {x};
  for_column_rows<N, 1>(g, at, from, [&](int64_t, const device::Pack<T, N>(&packs)[1]) {
    count += 1;
    const float share = 1.0f / count;
#pragma unroll
    for (int i = 0; i < N; ++i) moments[i].add(static_cast<float>(packs[0].value[i]) - origin[i], share);
  });
#pragma unroll
  for (int i = 0; i < N; ++i) moments[i].count = count;
  store_partials(g, at, moments, partials);
}

/// What forward leaves for backward; scale is weight / deviation.
template <class T>
struct FinishMoments {
  const T* x;
  const float* weight;
  float *mean, *inverse_deviation, *variance, *scale;
  float epsilon;

  __device__ void operator()(int64_t c, const Moments<double>& moments) const {
    mean[c] = static_cast<float>(static_cast<double>(static_cast<float>(x[c])) + moments.mean);
    variance[c] = static_cast<float>(moments.squares / moments.count);
    inverse_deviation[c] = 1.0f / std::sqrt(variance[c] + epsilon);
    scale[c] = weight[c] * inverse_deviation[c];
  }
};

__global__ void running_scale_kernel(const float* variance, const float* weight, float epsilon,
                                     int64_t columns, float* scale) {
  const int64_t c = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (c < columns) scale[c] = weight[c] * (1.0f / std::sqrt(variance[c] + epsilon));
}

/// y = (x - mean) scale + bias. Reads x and writes y once.
template <class T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    normalize_kernel(const T* x, const float* mean, const float* scale, const float* bias, ColumnGrid g,
                     T* y) {
  const ColumnPlace<N> at(g);
  if (!at.works) return;
  float m[N], s[N], b[N];
  load_floats<N>(mean + at.column, m);
  load_floats<N>(scale + at.column, s);
  load_floats<N>(bias + at.column, b);
  const T* const from[] = {x};
  for_column_rows<N, 1>(g, at, from, [&](int64_t place, const device::Pack<T, N>(&packs)[1]) {
    float result[N];
#pragma unroll
    for (int i = 0; i < N; ++i)
      result[i] = std::fma(static_cast<float>(packs[0].value[i]) - m[i], s[i], b[i]);
    store_floats<N>(y + place, result);
  });
}

/// Sums over the block's rows of dy (x - mean) and of dy. Reads x and dy once.
template <class T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    gradient_sums_kernel(const T* x, const T* dy, const float* mean, ColumnGrid g, SumPair<float>* partials) {
  const ColumnPlace<N> at(g);
  SumPair<float> sums[N];
  float m[N] = {};
  if (at.works) load_floats<N>(mean + at.column, m);
  const T* const from[] = {x, dy};
  for_column_rows<N, 2>(g, at, from, [&](int64_t, const device::Pack<T, N>(&packs)[2]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const auto gradient = static_cast<float>(packs[1].value[i]);
      sums[i].first = std::fma(gradient, static_cast<float>(packs[0].value[i]) - m[i], sums[i].first);
      sums[i].second += gradient;
    }
  });
  store_partials(g, at, sums, partials);
}

/// Gradients of the parameters, the statistics, and the factors [3, columns] of input_gradient_kernel.
struct FinishGradients {
  const float *weight, *mean, *inverse_deviation, *variance;
  float *dweight, *dbias, *running_mean, *running_var;
  float* factors;
  int64_t rows, columns;
  bool accumulate;

  __device__ void operator()(int64_t c, const SumPair<double>& sums) const {
    const auto count = static_cast<double>(rows);
    const auto inverse = static_cast<double>(inverse_deviation[c]);
    const double scale = static_cast<double>(weight[c]) * inverse, of_weight = sums.first * inverse;
    add_or_set(dweight[c], of_weight, accumulate);
    add_or_set(dbias[c], sums.second, accumulate);
    add_or_set(running_mean[c], static_cast<double>(mean[c]), accumulate);
    add_or_set(running_var[c], static_cast<double>(variance[c]) * count / (count - 1), accumulate);
    factors[c] = static_cast<float>(scale);
    factors[columns + c] = static_cast<float>(-scale * inverse * of_weight / count);
    factors[2 * columns + c] = static_cast<float>(-scale * sums.second / count);
  }
};

/// With n = (x - mean) inverse: dx = weight inverse (dy - mean(dy) - n mean(dy n)), as three factors per
/// column. Reads x and dy and writes dx once.
template <class T, int N>
__global__ void __launch_bounds__(kColumnThreads)
    input_gradient_kernel(const T* x, const T* dy, const float* mean, const float* factors, ColumnGrid g,
                          T* dx) {
  const ColumnPlace<N> at(g);
  if (!at.works) return;
  float m[N], of_dy[N], of_x[N], constant[N];
  load_floats<N>(mean + at.column, m);
  load_floats<N>(factors + at.column, of_dy);
  load_floats<N>(factors + g.columns + at.column, of_x);
  load_floats<N>(factors + 2 * g.columns + at.column, constant);
  const T* const from[] = {x, dy};
  for_column_rows<N, 2>(g, at, from, [&](int64_t place, const device::Pack<T, N>(&packs)[2]) {
    float result[N];
#pragma unroll
    for (int i = 0; i < N; ++i)
      result[i] = std::fma(of_dy[i], static_cast<float>(packs[1].value[i]),
                           std::fma(of_x[i], static_cast<float>(packs[0].value[i]) - m[i], constant[i]));
    store_floats<N>(dx + place, result);
  });
}

/// Forward moves three times the bytes of x and backward five times at the least: statistics are complete
/// only after all of x has been read.
class BatchNormKernel : public Kernel {
 public:
  BatchNormKernel(const BatchNorm& op, const Shape& input, const KernelOptions& options)
      : epsilon_(op.epsilon),
        training_(options.training),
        dtype_(options.compute),
        columns_(input[-1]),
        rows_(input.count() / input[-1] * options.batch) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    int64_t partials = 0;
    with_element_type_and_pack(dtype_, columns_, [&]<int N>(auto, std::integral_constant<int, N>) {
      partials = ColumnGrid(rows_, columns_, N).row_blocks * columns_;
    });
    switch (phase) {
      case KernelPhase::forward:
        return factor_bytes(1) + (training_ ? partials * static_cast<int64_t>(sizeof(Moments<float>)) : 0);
      case KernelPhase::backward_input:
        return factor_bytes(3) + partials * static_cast<int64_t>(sizeof(SumPair<float>));
      case KernelPhase::backward_weight:
        break;
    }
    return 0;
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    const auto* weight = arguments.parameters[0].as<const float>();
    const auto* bias = arguments.parameters[1].as<const float>();
    auto* scale = static_cast<float*>(arguments.workspace);
    with_element_type_and_pack(dtype_, columns_, [&]<class T, int N>(T, std::integral_constant<int, N>) {
      const ColumnGrid g(rows_, columns_, N);
      const auto* x = arguments.inputs[0].as<const T>();
      const float* mean = nullptr;
      if (training_) {
        auto* partials = partials_behind<Moments<float>>(scale, 1);
        device::launch(stream, g.grid(N * sizeof(Moments<float>)), moments_kernel<T, N>, x, g, partials);
        const FinishMoments<T> finish{x,
                                      weight,
                                      arguments.auxiliary[0].as<float>(),
                                      arguments.auxiliary[1].as<float>(),
                                      arguments.auxiliary[2].as<float>(),
                                      scale,
                                      epsilon_};
        fold_columns(stream, partials, g.row_blocks, columns_, finish);
        mean = finish.mean;
      } else {
        mean = arguments.parameters[2].as<const float>();
        device::launch(stream, {.blocks = device::blocks_for(columns_, 256, columns_), .threads = 256},
                       running_scale_kernel, arguments.parameters[3].as<const float>(), weight, epsilon_,
                       columns_, scale);
      }
      device::launch(stream, g.grid(), normalize_kernel<T, N>, x, mean, scale, bias, g,
                     arguments.outputs[0].as<T>());
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    auto* factors = static_cast<float*>(arguments.workspace);
    const FinishGradients finish{arguments.parameters[0].as<const float>(),
                                 arguments.auxiliary[0].as<const float>(),
                                 arguments.auxiliary[1].as<const float>(),
                                 arguments.auxiliary[2].as<const float>(),
                                 arguments.parameter_gradients[0].as<float>(),
                                 arguments.parameter_gradients[1].as<float>(),
                                 arguments.parameter_gradients[2].as<float>(),
                                 arguments.parameter_gradients[3].as<float>(),
                                 factors,
                                 rows_,
                                 columns_,
                                 arguments.accumulate};
    with_element_type_and_pack(dtype_, columns_, [&]<class T, int N>(T, std::integral_constant<int, N>) {
      const ColumnGrid g(rows_, columns_, N);
      const auto* x = arguments.inputs[0].as<const T>();
      const auto* dy = arguments.output_gradients[0].as<const T>();
      auto* dx = arguments.input_gradients[0].as<T>();
      auto* partials = partials_behind<SumPair<float>>(factors, 3);
      device::launch(stream, g.grid(N * sizeof(SumPair<float>)), gradient_sums_kernel<T, N>, x, dy,
                     finish.mean, g, partials);
      fold_columns(stream, partials, g.row_blocks, columns_, finish);
      if (dx != nullptr)
        device::launch(stream, g.grid(), input_gradient_kernel<T, N>, x, dy, finish.mean, factors, g, dx);
    });
  }

 private:
  /// Of so many floats for each column, up to a border at which partial results may begin.
  int64_t factor_bytes(int64_t each) const {
    return (each * columns_ * static_cast<int64_t>(sizeof(float)) + 15) / 16 * 16;
  }
  template <class Value>
  Value* partials_behind(float* factors, int64_t each) const {
    return reinterpret_cast<Value*>(reinterpret_cast<std::byte*>(factors) + factor_bytes(each));
  }

  float epsilon_;
  bool training_;
  DType dtype_;
  int64_t columns_, rows_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const BatchNorm& op, Inputs inputs, const KernelOptions& options) {
  expect_variance(op, inputs[0].shape, options);
  return std::make_unique<BatchNormKernel>(op, inputs[0].shape, options);
}

}  // namespace lockstep::ops
