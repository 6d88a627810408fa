#include "ops/cuda/library_product.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "device/cuda/check.h"
#include "device/cuda/cuda_device.h"

namespace lockstep::ops {
namespace {

constexpr uint64_t kWorkspaceBytes = 32 << 20;  // what NVIDIA recommends for Hopper
constexpr uintptr_t kWorkspaceAlignment = 256;  // what cublasLtMatmul asks for

template <auto destroy>
struct Destroy {
  template <class Handle>
  void operator()(Handle* handle) const {
    destroy(handle);
  }
};
using Operation =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatmulDesc_t>, Destroy<cublasLtMatmulDescDestroy>>;
using Layout =
    std::unique_ptr<std::remove_pointer_t<cublasLtMatrixLayout_t>, Destroy<cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<std::remove_pointer_t<cublasLtMatmulPreference_t>,
                                   Destroy<cublasLtMatmulPreferenceDestroy>>;

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::bfloat16:
      return CUDA_R_16BF;
    case DType::float16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

template <class Value>
void set(const Operation& operation, cublasLtMatmulDescAttributes_t attribute, Value value) {
  device::check(cublasLtMatmulDescSetAttribute(operation.get(), attribute, &value, sizeof value));
}

template <class Value>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, Value value) {
  device::check(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}

/// Of `items` matrices, `stride` elements apart.
Layout make_layout(const ColumnMajorMatrix& matrix, int64_t items, int64_t stride) {
  cublasLtMatrixLayout_t created = nullptr;
  device::check(cublasLtMatrixLayoutCreate(&created, cuda_type(matrix.dtype),
                                           static_cast<uint64_t>(matrix.rows),
                                           static_cast<uint64_t>(matrix.columns), matrix.leading));
  Layout layout(created);
  if (items == 1) return layout;
  const auto count = static_cast<int32_t>(items);
  device::check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                 sizeof count));
  device::check(cublasLtMatrixLayoutSetAttribute(layout.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                 &stride, sizeof stride));
  return layout;
}

cublasLtEpilogue_t epilogue_of(const ProductSpec& spec) {
  switch (spec.epilogue) {
    case Epilogue::gelu:
      return spec.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    case Epilogue::gelu_gradient:
      return CUBLASLT_EPILOGUE_DGELU;
    default:
      return spec.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
}

Operation make_operation(const ProductSpec& spec, const ColumnMajorProduct& product) {
  // CUBLAS_COMPUTE_32F never rounds float32 factors; two-byte factors it multiplies exactly, and adds in
  // float32.
  const bool tf32 = spec.tf32 && spec.factors == DType::float32;
  cublasLtMatmulDesc_t created = nullptr;
  device::check(cublasLtMatmulDescCreate(&created, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                         CUDA_R_32F));
  Operation operation(created);
  set(operation, CUBLASLT_MATMUL_DESC_TRANSA, int32_t{product.first.transposed ? CUBLAS_OP_T : CUBLAS_OP_N});
  set(operation, CUBLASLT_MATMUL_DESC_TRANSB, int32_t{product.second.transposed ? CUBLAS_OP_T : CUBLAS_OP_N});
  set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{epilogue_of(spec)});
  // Choosing an algorithm reads neither the bias nor what is kept, but takes the pointers' alignment from
  // them.
  const auto* const aligned = reinterpret_cast<const void*>(uintptr_t{kTensorAlignment});
  if (spec.bias) {
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t{cuda_type(spec.result)});
    set(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, aligned);
  }
  if (spec.epilogue != Epilogue::none) {  // what is kept is of the result's type unless one is told otherwise
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, product.result.leading);
    set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aligned);
    if (spec.items > 1) set(operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE, spec.c_count());
  }
  return operation;
}

Preference make_preference(const ColumnMajorProduct& product) {
  cublasLtMatmulPreference_t created = nullptr;
  device::check(cublasLtMatmulPreferenceCreate(&created));
  Preference preference(created);
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  // Where the inner dimension is divided among blocks, partial sums are kept in float32 and added by a kernel
  // of their own, in a fixed order. The other schemes add in the order of arrival, or round partial sums to
  // the result's type.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  // The promised alignment, not that of the pointers: the choice must not depend on where memory happens to
  // lie.
  const auto promise = [](const ColumnMajorMatrix& matrix) {
    return static_cast<uint32_t>(matrix.alignment);
  };
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, promise(product.first));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, promise(product.second));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, promise(product.result));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, promise(product.result));
  return preference;
}

/// A product as cuBLASLt is asked for it.
struct MatmulProblem {
  MatmulProblem(const ProductSpec& spec, device::CudaDevice& device)
      : library(device.cublas_lt()),
        product(column_major(spec)),
        operation(make_operation(spec, product)),
        first(make_layout(product.first, spec.items, spec.shares_b ? 0 : spec.b_count())),
        second(make_layout(product.second, spec.items, spec.a_count())),
        result(make_layout(product.result, spec.items, spec.c_count())) {}

  /// Whether the algorithm can compute it, too.
  bool takes(const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t checked{};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(library, operation.get(), first.get(), second.get(),
                                                          result.get(), result.get(), &algorithm, &checked);
    return status == CUBLAS_STATUS_SUCCESS && checked.workspaceSize <= kWorkspaceBytes;
  }

  cublasLtHandle_t library;
  ColumnMajorProduct product;
  Operation operation;
  Layout first, second, result;
};

/// At most `most` that work, cuBLASLt's favourite first.
std::vector<cublasLtMatmulHeuristicResult_t> favourites(const ProductSpec& spec, device::CudaDevice& device,
                                                        int most) {
  const MatmulProblem problem(spec, device);
  const Preference preference = make_preference(problem.product);
  std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      problem.library, problem.operation.get(), problem.first.get(), problem.second.get(),
      problem.result.get(), problem.result.get(), preference.get(), most, found.data(), &count);
  // INVALID_VALUE is documented for descriptions "in conflict or in an impossible configuration": an epilogue
  // or several items may be what is impossible.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
      (status == CUBLAS_STATUS_INVALID_VALUE && (spec.has_epilogue() || spec.items > 1)))
    return {};
  device::check(status);
  found.resize(static_cast<size_t>(count));
  const auto failed = [](const auto& each) { return each.state != CUBLAS_STATUS_SUCCESS; };
  // Of several some may not do; that none does is an error, and not the answer that there is none. Several
  // items are only asked about.
  if (count > 0 && spec.items == 1 && std::all_of(found.begin(), found.end(), failed))
    device::check(found.front().state);
  std::erase_if(found, failed);
  return found;
}

/// At most `most` that work for one item, cuBLASLt's favourite first; if the spec is batchable, its
/// favourites for several items, if there are any that also work for one. They are asked for two, so that the
/// choice does not depend on how many there are.
std::vector<cublasLtMatmulHeuristicResult_t> find_algorithms(const ProductSpec& spec,
                                                             device::CudaDevice& device, int most) {
  if (spec.batchable) {
    ProductSpec two = spec;
    two.items = 2;
    auto found = favourites(two, device, most);
    const MatmulProblem one(spec.of_one(), device);
    std::erase_if(found, [&](const auto& each) { return !one.takes(each.algo); });
    if (!found.empty()) return found;
  }
  return favourites(spec.of_one(), device, most);
}

/// The algorithm is chosen for one item, so that each has the bits that it has alone, and computes all of
/// them in one call if it can.
class CublasLtProduct : public LibraryProduct {
 public:
  CublasLtProduct(const ProductSpec& spec, device::CudaDevice& device,
                  const cublasLtMatmulHeuristicResult_t& chosen)
      : spec_(spec), problem_(spec, device), chosen_(chosen) {
    if (spec.items == 1 || problem_.takes(chosen.algo)) return;
    spec_ = spec.of_one();
    problem_ = MatmulProblem(spec_, device);
    calls_ = spec.items;
  }

  void run(const ProductOperands& operands, void* workspace, device::Stream& stream) override {
    if (spec_.bias) set(problem_.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    ProductOperands item = operands;
    for (int64_t call = 0; call < calls_; ++call, item = item.next(spec_)) multiply(item, workspace, stream);
  }

  ProductAlgorithm algorithm() const override {
    // Two or four bytes, the lowest first; -1 if the algorithm knows of no such attribute.
    const auto value = [this](cublasLtMatmulAlgoConfigAttributes_t attribute, size_t size_bytes = 4) {
      int32_t number = 0;
      size_t written = 0;
      const auto status =
          cublasLtMatmulAlgoConfigGetAttribute(&chosen_.algo, attribute, &number, size_bytes, &written);
      return status == CUBLAS_STATUS_SUCCESS ? number : -1;
    };
    return {
        .name =
            fmt::format(
                "{}, tile {}, stages {}, split {}, reduction {}, swizzle {}, option {}, inner {}, cluster {}",
                value(CUBLASLT_ALGO_CONFIG_ID), value(CUBLASLT_ALGO_CONFIG_TILE_ID),
                value(CUBLASLT_ALGO_CONFIG_STAGES_ID), value(CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                value(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME), value(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
                value(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION), value(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2),
                value(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2)) +
            (calls_ > 1 ? fmt::format(", {} calls", calls_) : ""),
        .workspace_bytes = static_cast<int64_t>(chosen_.workspaceSize),
        .waves = chosen_.wavesCount};
  }

 private:
  void multiply(const ProductOperands& operands, void* workspace, device::Stream& stream) {
    if (spec_.epilogue != Epilogue::none)
      set(problem_.operation, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.kept);
    const auto address = reinterpret_cast<uintptr_t>(workspace);
    auto* aligned = static_cast<std::byte*>(workspace) +
                    (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
    const float alpha = 1,
                beta = operands.accumulate ? 1 : 0;  // in host memory: read before the call returns
    device::check(cublasLtMatmul(problem_.library, problem_.operation.get(), &alpha, operands.b,
                                 problem_.first.get(), operands.a, problem_.second.get(), &beta, operands.c,
                                 problem_.result.get(), operands.c, problem_.result.get(), &chosen_.algo,
                                 aligned, kWorkspaceBytes, static_cast<cudaStream_t>(stream.native())));
  }

  ProductSpec spec_;  ///< of a call
  MatmulProblem problem_;
  cublasLtMatmulHeuristicResult_t chosen_;
  int64_t calls_ = 1;
};

}  // namespace

std::string LibraryProduct::library() { return fmt::format("cuBLASLt {}", cublasLtGetVersion()); }

int64_t LibraryProduct::workspace_bytes() { return kWorkspaceBytes + kWorkspaceAlignment; }

// What one kernel makes of them, the next should read from the L2 cache, beside whatever else the two touch:
// an H200 has 50 to 60 MB of it, an A100 40. The price is that products are small: at batch 64, two-byte
// columns of 3x3 windows of 14x14x256 make three products of about 68 tiles of 128 x 128 each, for 132
// multiprocessors; parts of 64 MiB would be one of 196. Which weighs more is not measured: gpu_probe
// convolutions prints both.
int64_t LibraryProduct::factor_bytes() { return 20 << 20; }

// Products of which so many bytes are made fill a GPU by themselves.
int64_t LibraryProduct::fold_bytes() { return 64 << 20; }

std::vector<std::unique_ptr<LibraryProduct>> LibraryProduct::candidates(const ProductSpec& spec,
                                                                        device::Device& device, int most) {
  auto& gpu = dynamic_cast<device::CudaDevice&>(device);
  gpu.make_current();
  std::vector<std::unique_ptr<LibraryProduct>> all;
  for (const auto& algorithm : find_algorithms(spec, gpu, most))
    all.push_back(std::make_unique<CublasLtProduct>(spec, gpu, algorithm));
  return all;
}

}  // namespace lockstep::ops
