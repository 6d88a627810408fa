#pragma once

#include <cstdint>
#include <memory>

#include "device/device.h"
#include "ops/cuda/product_spec.h"

namespace lockstep {

/// A matrix product on a GPU: cuBLASLt (ops/cuda/product.cpp), or plain loops on the emulated one
/// (ops/emulated/product.cpp). The same bits in every call with the same values. Thread-safety: one call at
/// a time.
class Product {
 public:
  explicit Product(const ProductSpec& spec);
  ~Product();
  Product(Product&&) noexcept;
  Product& operator=(Product&&) noexcept;

  /// What every product may use: a constant, so that memory is planned without a device.
  static int64_t workspace_bytes();
  /// How much of the workspace, besides, kernels should fill with factors that they make for a product.
  static int64_t factor_bytes();

  /// Chooses the algorithm, from shapes, types and promised alignment alone. Once, before the first run.
  void prepare(Device& device);
  /// Where the matrices of one call lie.
  struct Operands {
    const void* a;
    const void* b;
    void* c;                     ///< overwritten or, with `accumulate`, added to
    const void* bias = nullptr;  ///< where the spec has one
    void* kept = nullptr;        ///< of the epilogue: written by gelu, read by gelu_gradient
    bool accumulate = false;     ///< REQUIRES: no epilogue
  };
  /// `workspace`, aligned as tensors are, is not read before it is written.
  void run(const Operands& operands, void* workspace, Stream& stream);

 private:
  struct Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace lockstep
