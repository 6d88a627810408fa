#pragma once

#include <cstdint>

#include "device/device.h"
#include "lockstep/tensor.h"

namespace lockstep::ops {

/// ColumnSum for a matrix that a norm's backward writes, in an order in which that kernel can sum it, too:
/// each block sums the columns of its rows, and these sums are added in double precision.
class NormColumnSum {
 public:
  NormColumnSum(int64_t rows, int64_t width, DType dtype, int replicas = 1);
  int64_t workspace_bytes() const;
  /// As ColumnSum::run, by a pass of its own.
  void run(const void* x, float* sums, bool accumulate, void* workspace, device::Stream& stream) const;

  /// Adds what a norm's backward has left at the begin of `workspace`: the sums of each block of each
  /// replica, [replicas, norm_backward_blocks(), width].
  void finish(float* sums, bool accumulate, void* workspace, device::Stream& stream) const;

 private:
  int64_t partials() const;

  int64_t rows_, width_;
  DType dtype_;
  int replicas_;
  int64_t blocks_;
};

}  // namespace lockstep::ops
