#pragma once

#include "lockstep/ops.h"
#include "lockstep/tensor.h"

namespace lockstep::ops {

inline int64_t pool_stride(const Pool2d& op) { return op.stride == 0 ? op.kernel : op.stride; }

/// Sizes of one sample. The window of output pixel (row, column) begins at (row * stride - padding, column *
/// stride - padding); only its part inside the image counts.
struct PoolGeometry {
  int64_t height, width, channels;  ///< of the input
  int64_t out_height, out_width;
  int64_t kernel, stride, padding;
  bool count_include_pad;  ///< averages divide by kernel^2, however little of a window is in the image

  PoolGeometry(const Pool2d& op, const Shape& image);
  int64_t input_size() const { return height * width * channels; }
  int64_t output_size() const { return out_height * out_width * channels; }
};

}  // namespace lockstep::ops
