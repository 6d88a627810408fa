#include "ops/fusion.h"

namespace lockstep::ops {

// cuBLASLt keeps what goes into a GELU, and reads it for the gradient, in rows of a multiple of 8 elements.
// The rows of both factors have to start on 16 bytes as well: what it computes other shapes with need not
// know these epilogues.
bool can_fuse_gelu(const Linear& op, const TensorSpec& input, DType compute) {
  const bool is_narrow = compute == DType::bfloat16 || compute == DType::float16;
  return is_narrow && op.units % 8 == 0 && input.shape[-1] % 8 == 0;
}

}  // namespace lockstep::ops
