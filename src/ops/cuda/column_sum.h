#pragma once

#include <cstdint>

#include "device/device.h"
#include "lockstep/tensor.h"

namespace lockstep::ops {

/// Sums of the columns of a row-major matrix [rows, columns], float32: the gradient of a bias. The order of
/// each sum follows from the shape and the element type alone.
class ColumnSum {
 public:
  ColumnSum(int64_t rows, int64_t columns, DType dtype);
  int64_t workspace_bytes() const;
  /// sums[column] = (or +=) the sum over the rows of x.
  void run(const void* x, float* sums, bool accumulate, void* workspace, device::Stream& stream) const;

 private:
  int64_t rows_, columns_;
  DType dtype_;
  int64_t parts_;  ///< that the rows are cut into
};

}  // namespace lockstep::ops
