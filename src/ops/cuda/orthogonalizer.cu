#include <algorithm>

#include "device/cuda/kernel.h"
#include "ops/cuda/product.h"
#include "ops/newton_schulz.h"
#include "ops/orthogonalizer.h"

namespace lockstep::ops {
namespace {

constexpr unsigned kThreads = 256;

__device__ inline int64_t first_element() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t stride_of_grid() { return int64_t{gridDim.x} * blockDim.x; }

/// Every block adds the few squares by itself, in the same order.
__global__ void __launch_bounds__(kThreads)
    normalize_kernel(float* x, int64_t count, const double* squares, int64_t square_count) {
  __shared__ double scratch[device::kWarpSize + 1];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < square_count; i += blockDim.x) sum += squares[i];
  const float scale = inverse_norm(device::block_sum(sum, scratch));
  for (int64_t i = first_element(); i < count; i += stride_of_grid()) x[i] *= scale;
}

__global__ void __launch_bounds__(kThreads) factor_kernel(float* a, const float* squared, int64_t count) {
  for (int64_t i = first_element(); i < count; i += stride_of_grid())
    a[i] = newton_schulz_factor(a[i], squared[i]);
}

__global__ void __launch_bounds__(kThreads) next_kernel(float* x, const float* product, int64_t count) {
  for (int64_t i = first_element(); i < count; i += stride_of_grid())
    x[i] = newton_schulz_next(x[i], product[i]);
}

device::Grid grid_of(int64_t count) {
  return {.blocks = device::blocks_for(count, 4 * kThreads), .threads = kThreads};
}

class GpuOrthogonalizer : public Orthogonalizer {
 public:
  GpuOrthogonalizer(const MatrixSize& size, int iterations)
      : size_(size),
        iterations_(iterations),
        is_tall_(size.rows > size.columns),
        least_(std::min(size.rows, size.columns)),
        a_(product_of(least_, least_, is_tall_ ? size.rows : size.columns, is_tall_, !is_tall_)),
        square_(product_of(least_, least_, least_, false, false)),
        next_(product_of(size.rows, size.columns, least_, false, false)),
        places_(size) {}

  int64_t workspace_bytes() const override { return places_.of_products + Product::workspace_bytes(); }

  void prepare(device::Device& device) override {
    for (Product* product : {&a_, &square_, &next_}) product->prepare(device);
  }

  void run(float* x, const double* squares, int64_t square_count, void* workspace,
           device::Stream& stream) override {
    const auto at = [workspace](int64_t byte) {
      return reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + byte);
    };
    float *const product = at(places_.product), *const a = at(places_.a),
                 *const squared = at(places_.squared);
    void* const own = at(places_.of_products);
    const int64_t count = size_.count(), square = least_ * least_;
    device::launch(stream, grid_of(count), normalize_kernel, x, count, squares, square_count);
    for (int i = 0; i < iterations_; ++i) {
      a_.run(ProductOperands{.a = x, .b = x, .c = a}, own, stream);
      square_.run(ProductOperands{.a = a, .b = a, .c = squared}, own, stream);
      device::launch(stream, grid_of(square), factor_kernel, a, squared, square);
      next_.run(ProductOperands{.a = is_tall_ ? x : a, .b = is_tall_ ? a : x, .c = product}, own, stream);
      device::launch(stream, grid_of(count), next_kernel, x, product, count);
    }
  }

 private:
  static ProductSpec product_of(int64_t rows, int64_t columns, int64_t inner, bool transpose_a,
                                bool transpose_b) {
    ProductSpec spec;
    spec.rows = rows;
    spec.columns = columns;
    spec.inner = inner;
    spec.transpose_a = transpose_a;
    spec.transpose_b = transpose_b;
    return spec;
  }

  MatrixSize size_;
  int iterations_;
  bool is_tall_;
  int64_t least_;
  Product a_, square_, next_;
  NewtonSchulzWorkspace places_;
};

}  // namespace

std::unique_ptr<Orthogonalizer> make_gpu_orthogonalizer(const MatrixSize& size, int iterations) {
  return std::make_unique<GpuOrthogonalizer>(size, iterations);
}

}  // namespace lockstep::ops
