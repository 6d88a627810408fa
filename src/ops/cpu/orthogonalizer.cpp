#include "ops/orthogonalizer.h"

#include <algorithm>
#include <numeric>

#include "base/ensure.h"
#include "ops/cpu/chained_products.h"
#include "ops/cpu/parallel.h"
#include "ops/newton_schulz.h"

namespace lockstep::ops {
namespace {

/// Elements that a thread takes at once.
constexpr int64_t kElementsAtOnce = 16 << 10;

/// With more rows than columns it is A = Xᵀ X, and X (b A + c A²) is added: the same as of the transpose,
/// whose elements are the same chains, so that a matrix and its transpose have the same bits.
class CpuOrthogonalizer : public Orthogonalizer {
 public:
  CpuOrthogonalizer(const MatrixSize& size, int iterations, int threads)
      : size_(size),
        iterations_(iterations),
        threads_(std::max(1, threads)),
        is_tall_(size.rows > size.columns),
        least_(std::min(size.rows, size.columns)),
        matrix_(is_tall_ ? size.rows : least_, least_, is_tall_ ? least_ : size.columns, 1, threads),
        square_(least_, least_, least_, 1, threads),
        places_(size) {
    ensure(size.rows >= 1 && size.columns >= 1, "a matrix has rows and columns");
  }

  int64_t workspace_bytes() const override {
    const int64_t of_a = is_tall_ ? matrix_.weight_gradient_bytes() : matrix_.forward_bytes();
    return places_.of_products + std::max({of_a, square_.forward_bytes(), matrix_.input_gradient_bytes()});
  }

  void prepare(device::Device&) override {}

  void run(float* x, const double* squares, int64_t square_count, void* workspace,
           device::Stream& stream) override {
    stream.launch([this, x, squares, square_count, workspace] {
      const float scale = inverse_norm(std::accumulate(squares, squares + square_count, 0.0));
      const auto at = [workspace](int64_t byte) {
        return reinterpret_cast<float*>(static_cast<std::byte*>(workspace) + byte);
      };
      for_elements(size_.count(), [=](int64_t i) { x[i] *= scale; });
      float *product = at(places_.product), *a = at(places_.a), *squared = at(places_.squared),
            *own = at(places_.of_products);
      for (int i = 0; i < iterations_; ++i) iterate(x, product, a, squared, own);
    });
  }

 private:
  void iterate(float* x, float* product, float* a, float* squared, float* own) const {
    if (is_tall_)
      matrix_.weight_gradient(x, x, a, false, own);
    else
      matrix_.forward(x, x, nullptr, a, own);
    square_.forward(a, a, nullptr, squared, own);  // a is its own transpose, bit by bit
    for_elements(least_ * least_, [=](int64_t i) { a[i] = newton_schulz_factor(a[i], squared[i]); });
    if (is_tall_)
      matrix_.input_gradient(x, a, product, own);
    else
      matrix_.input_gradient(a, x, product, own);
    for_elements(size_.count(), [=](int64_t i) { x[i] = newton_schulz_next(x[i], product[i]); });
  }

  template <class Work>
  void for_elements(int64_t count, const Work& work) const {
    parallel_pieces(threads_, count, kElementsAtOnce, [&work](int64_t begin, int64_t end) {
#pragma GCC ivdep
      for (int64_t i = begin; i < end; ++i) work(i);
    });
  }

  MatrixSize size_;
  int iterations_, threads_;
  bool is_tall_;
  int64_t least_;
  ChainedProducts matrix_, square_;
  NewtonSchulzWorkspace places_;
};

}  // namespace

std::unique_ptr<Orthogonalizer> make_orthogonalizer(device::DeviceKind device, const MatrixSize& size,
                                                    int iterations, int threads) {
  if (device == device::DeviceKind::cuda) return make_gpu_orthogonalizer(size, iterations);
  return std::make_unique<CpuOrthogonalizer>(size, iterations, threads);
}

}  // namespace lockstep::ops
