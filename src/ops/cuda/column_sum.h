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

 private:
  int64_t rows_, columns_;
  DType dtype_;
  int replicas_;
  int64_t parts_;  ///< that the rows of each are cut into
};

}  // namespace lockstep::ops
