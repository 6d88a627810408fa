#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "ops/cuda/product_spec.h"

namespace lockstep::ops {

/// Where the matrices of one product lie.
struct ProductOperands {
  const void* a;
  const void* b;
  void* c;                     ///< overwritten or, with `accumulate`, added to
  const void* bias = nullptr;  ///< if the spec has one
  void* kept = nullptr;        ///< of the epilogue: written by gelu, read by gelu_gradient
  bool accumulate = false;     ///< REQUIRES: Epilogue::none

  /// Those of the item after this one.
  ProductOperands next(const ProductSpec& spec) const {
    const auto after = [](const void* from, int64_t elements, DType dtype) {
      return static_cast<const std::byte*>(from) + elements * size_of(dtype);
    };
    ProductOperands item = *this;
    item.a = after(a, spec.a_count(), spec.factors);
    if (!spec.shares_b) item.b = after(b, spec.b_count(), spec.factors);
    item.c = const_cast<std::byte*>(after(c, spec.c_count(), spec.result));
    if (kept != nullptr) item.kept = const_cast<std::byte*>(after(kept, spec.c_count(), spec.result));
    return item;
  }
};

/// How a library computes a product: what it says of itself.
struct ProductAlgorithm {
  std::string name;             ///< equal for equal algorithms; "66, tile 20, stages 35, split 1, ..."
  int64_t workspace_bytes = 0;  ///< what it uses of the workspace
  double waves = 0;             ///< how often its blocks fill the GPU; 0 if the library does not say
};

/// A matrix product as the GPU's library computes it: cuBLASLt (ops/cuda/library_product.cpp), or plain loops
/// on the emulated GPU (ops/emulated/library_product.cpp). Thread-safety: one call at a time.
class LibraryProduct {
 public:
  static std::string library();  ///< its name and version
  static int64_t workspace_bytes();
  static int64_t factor_bytes();  ///< see Product

  /// The product by each of the library's deterministic algorithms, at most `most`, its favourite first. It
  /// looks at shapes, types and promised alignment alone. Empty if it has none.
  static std::vector<std::unique_ptr<LibraryProduct>> candidates(const ProductSpec& spec,
                                                                 device::Device& device, int most);
  /// The first candidate, which is what lockstep computes with; null if there is none.
  static std::unique_ptr<LibraryProduct> choose(const ProductSpec& spec, device::Device& device) {
    auto all = candidates(spec, device, 1);
    return all.empty() ? nullptr : std::move(all.front());
  }

  virtual ~LibraryProduct() = default;
  virtual void run(const ProductOperands& operands, void* workspace, device::Stream& stream) = 0;
  virtual ProductAlgorithm algorithm() const = 0;
};

}  // namespace lockstep::ops
