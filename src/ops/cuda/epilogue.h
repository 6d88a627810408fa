#pragma once

#include <cstdint>

#include "device/device.h"
#include "lockstep/tensor.h"

namespace lockstep::ops {

// What follows a product whose library has no epilogue for it. Values are float32, bfloat16 or float16; they
// were rounded to that type by the product, and are once more by each of these.

/// c[row, column] += bias[column]. `c` may begin at any element.
void add_bias(const void* bias, int64_t rows, int64_t columns, DType dtype, void* c, device::Stream& stream);

/// c = gelu(kept). Both are aligned as tensors are, here and below.
void apply_gelu(const void* kept, int64_t count, DType dtype, void* c, device::Stream& stream);

/// c *= gelu'(kept)
void apply_gelu_gradient(const void* kept, int64_t count, DType dtype, void* c, device::Stream& stream);

}  // namespace lockstep::ops
