#pragma once

#include <cstdint>
#include <memory>

#include "ops/cuda/library_product.h"

namespace lockstep::ops {

/// A matrix product on a GPU, by its library. If that has no algorithm for the bias and the epilogue, it
/// computes the product alone, and kernels of ours do the rest, in a pass over memory for each: to values
/// that are rounded to the result's type before, and once more by every pass. The same bits in every call
/// with the same values. Thread-safety: one call at a time.
class Product {
 public:
  explicit Product(const ProductSpec& spec);

  /// What every product may use: a constant, so that memory is planned without a device.
  static int64_t workspace_bytes() { return LibraryProduct::workspace_bytes(); }
  /// How much of the workspace, besides, kernels should fill with factors that they make for a product.
  static int64_t factor_bytes() { return LibraryProduct::factor_bytes(); }

  /// Chooses the algorithm, from shapes, types and promised alignment alone. Once, before the first run.
  /// Throws DeviceError if there is none.
  void prepare(device::Device& device);
  const ProductSpec& spec() const { return spec_; }
  /// `workspace`, aligned as tensors are, is not read before it is written.
  void run(const ProductOperands& operands, void* workspace, device::Stream& stream);

 private:
  ProductSpec spec_;
  std::unique_ptr<LibraryProduct> library_;  ///< null before prepare()
  bool epilogue_follows_ = false;            ///< by kernels of ours
};

}  // namespace lockstep::ops
