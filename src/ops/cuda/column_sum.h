#pragma once

#include <cstdint>

#include "device/device.h"
#include "lockstep/tensor.h"

namespace lockstep::ops {

/// Sums of the columns of a row-major matrix, float32: the gradient of a bias. `rows` are those of a virtual
/// replica, of which there are so many, one after the other: the rows of each are summed in an order that
/// follows from its shape and the element type alone, and these sums along the canonical tree.
class ColumnSum {
 public:
  ColumnSum(int64_t rows, int64_t columns, DType dtype, int replicas = 1);
  int64_t workspace_bytes() const;
  /// sums[column] = (or +=) the sum over all rows of x. REQUIRES: one replica, if it accumulates.
  void run(const void* x, float* sums, bool accumulate, void* workspace, device::Stream& stream) const;

  // For kernels that make the matrix (column_sum_kernel.h): they leave the sums of each part of the rows of
  // each replica, [replicas, parts, columns], which finish() adds up.
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t parts() const { return parts_; }
  int replicas() const { return replicas_; }
  struct Parts {
    float* sums;
    bool accumulate;  ///< there is one part, whose sums are added to what is there
  };
  Parts parts_of(float* sums, bool accumulate, void* workspace) const;
  void finish(float* sums, bool accumulate, void* workspace, device::Stream& stream) const;

 private:
  float* of_replicas(float* sums, void* workspace) const;

  int64_t rows_, columns_;
  DType dtype_;
  int replicas_;
  int64_t parts_;  ///< that the rows of each are cut into
};

}  // namespace lockstep::ops
