#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "ops/cuda/product.h"

namespace lockstep::ops {

/// The gradient of a weight over several virtual replicas: a product for each, over its own rows, and their
/// sum along the canonical tree. It is one product whose inner dimension is cut at the borders of replicas:
/// as many as workspace allows, and as make up a node of the tree, are computed by one call, and then added
/// by one kernel. Thread-safety: one call at a time.
class FoldedProduct {
 public:
  /// `spec`: of one replica, whose result is float32. Factors of the replicas follow each other.
  FoldedProduct(const ProductSpec& spec, int replicas);

  int64_t workspace_bytes() const;
  void prepare(device::Device& device);
  /// `operands`: factors of the first replica, and C for the sum. REQUIRES: one replica, if it accumulates.
  void run(const ProductOperands& operands, void* workspace, device::Stream& stream);

 private:
  int64_t elements() const { return bytes_ / size_of(DType::float32); }
  int groups() const { return (replicas_ + together_ - 1) / together_; }
  int64_t terms_bytes() const;
  int replicas_together() const;

  int replicas_;
  int64_t bytes_;  ///< of the gradient
  int together_;   ///< replicas of a call: a power of two, or all
  Product whole_;
  std::optional<Product> rest_;  ///< of the replicas that are left over
};

}  // namespace lockstep::ops
