#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/device.h"
#include "ops/cuda/product_spec.h"

namespace lockstep {

/// Where the matrices of one product lie.
struct ProductOperands {
  const void* a;
  const void* b;
  void* c;                     ///< overwritten or, with `accumulate`, added to
  const void* bias = nullptr;  ///< where the spec has one
  void* kept = nullptr;        ///< of the epilogue: written by gelu, read by gelu_gradient
  bool accumulate = false;     ///< REQUIRES: Epilogue::none
};

/// A matrix product as the GPU's library computes it: cuBLASLt (ops/cuda/library_product.cpp), or plain loops
/// on the emulated GPU (ops/emulated/library_product.cpp). Thread-safety: one call at a time.
class LibraryProduct {
 public:
  static std::string library();  ///< its name and version
  static int64_t workspace_bytes();
  static int64_t factor_bytes();  ///< see Product

  /// Chooses the algorithm, from shapes, types and promised alignment alone. Null where the library has no
  /// deterministic one.
  static std::unique_ptr<LibraryProduct> choose(const ProductSpec& spec, Device& device);

  virtual ~LibraryProduct() = default;
  virtual void run(const ProductOperands& operands, void* workspace, Stream& stream) = 0;
};

}  // namespace lockstep
