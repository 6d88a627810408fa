#include "ops/cuda/column_reduction.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

struct Sum {
  float value = 0;
  __device__ void join(const Sum& other) { value += other.value; }
};

/// y [samples, columns]: means over the rows of each block, which are a sample's pixels. Reads x once.
template <class T, int N>
__global__ void __launch_bounds__(kColumnThreads) mean_kernel(const T* x, ColumnGrid g, T* y) {
  const ColumnPlace<N> at(g);
  Sum sums[N];
  const T* const from[] = {x};
  for_column_rows<N, 1>(g, at, from, [&](int64_t, const device::Pack<T, N>(&packs)[1]) {
#pragma unroll
    for (int i = 0; i < N; ++i) sums[i].value += static_cast<float>(packs[0].value[i]);
  });
  join_row_lanes(g.lanes, g.row_lanes, kColumnThreads, sums, device::dynamic_shared<Sum>());
  if (at.row_lane != 0 || !at.works) return;
  float means[N];
#pragma unroll
  for (int i = 0; i < N; ++i) means[i] = sums[i].value / static_cast<float>(g.rows_per_block);
  store_floats<N>(y + blockIdx.x * g.columns + at.column, means);
}

/// Writes dx once.
template <class T, int N>
__global__ void __launch_bounds__(kColumnThreads) spread_kernel(const T* dy, ColumnGrid g, T* dx) {
  const ColumnPlace<N> at(g);
  if (!at.works) return;
  float gradient[N];
  load_floats<N>(dy + blockIdx.x * g.columns + at.column, gradient);
#pragma unroll
  for (int i = 0; i < N; ++i) gradient[i] /= static_cast<float>(g.rows_per_block);
  for (int64_t row = at.first_row; row < at.end_row; row += g.row_lanes)
    store_floats<N>(dx + row * g.columns + at.column, gradient);
}

class GlobalPool2dKernel : public Kernel {
 public:
  GlobalPool2dKernel(const Shape& image, const KernelOptions& options)
      : dtype_(options.compute),
        pixels_(image[0] * image[1]),
        rows_(pixels_ * options.batch),
        columns_(image[2]) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    with_element_type_and_pack(dtype_, columns_, [&]<class T, int N>(T, std::integral_constant<int, N>) {
      const ColumnGrid g(rows_, columns_, N, pixels_);
      device::launch(stream, g.grid(N * sizeof(Sum)), mean_kernel<T, N>, arguments.inputs[0].as<const T>(), g,
                     arguments.outputs[0].as<T>());
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    with_element_type_and_pack(dtype_, columns_, [&]<class T, int N>(T, std::integral_constant<int, N>) {
      const ColumnGrid g(rows_, columns_, N, pixels_);
      device::launch(stream, g.grid(), spread_kernel<T, N>, arguments.output_gradients[0].as<const T>(), g,
                     arguments.input_gradients[0].as<T>());
    });
  }

 private:
  DType dtype_;
  int64_t pixels_, rows_, columns_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const GlobalPool2d&, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<GlobalPool2dKernel>(inputs[0].shape, options);
}

}  // namespace lockstep::ops
