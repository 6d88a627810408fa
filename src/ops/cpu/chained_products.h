#pragma once

#include <cstdint>

namespace lockstep::ops {

/// The products of a linear op, of row-major matrices: x is [rows, inputs], the weight [units, inputs], y
/// [rows, units]; rows are those of `replicas` equal parts, one after the other.
///
/// Every element is one chain of fused multiply-adds in ascending order of the inner index, from 0 on, to
/// which a bias is added last. A gradient of parameters has such a chain for each replica, over its rows, and
/// the chains' sum along the canonical tree (layout/canonical_tree.h). So its bits depend on nothing but the
/// numbers: not on how many rows are computed at once, nor on threads, nor on the instruction set.
///
/// How they are tiled: docs/cpu-products.md. Workspace is uninitialised memory, aligned to 64 bytes.
class ChainedProducts {
 public:
  ChainedProducts(int64_t rows, int64_t units, int64_t inputs, int replicas, int threads);

  int64_t forward_bytes() const;  ///< of workspace
  int64_t input_gradient_bytes() const;
  int64_t weight_gradient_bytes() const;

  /// y = x weight^T + bias; bias: null if there is none.
  void forward(const float* x, const float* weight, const float* bias, float* y, void* workspace) const;
  /// dx = dy weight.
  void input_gradient(const float* dy, const float* weight, float* dx, void* workspace) const;
  /// dweight (+)= dy^T x. Accumulating goes on with the chains. REQUIRES then: one replica.
  void weight_gradient(const float* dy, const float* x, float* dweight, bool accumulate,
                       void* workspace) const;

 private:
  /// Whether y's transpose is computed, and transposed: if fewer numbers are moved then.
  bool transposes() const;
  // Of weight_gradient: panels and rows of x that are packed at once.
  bool is_read_in_place(int64_t column) const;
  bool has_near_inputs() const;
  int64_t panels_at_once() const;
  int64_t packed_panels() const;
  int64_t packed_rows() const;
  int64_t packed_floats() const;  ///< of all threads
  bool folds_in_tiles() const;
  /// dweight (+)= the sum over those rows, which are of `replicas` equal parts.
  void add_rows(int64_t first_row, int64_t rows, int replicas, const float* dy, const float* x,
                float* dweight, bool accumulate, float* workspace) const;

  int64_t rows_, units_, inputs_;
  int replicas_, threads_;
};

}  // namespace lockstep::ops
