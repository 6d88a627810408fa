#pragma once

#include <cstdint>

#include "device/device.h"
#include "lockstep/tensor.h"

namespace lockstep::ops {

// Products of a grouped convolution read and write the rows of one group after those of another.

/// to [groups][rows][width] from [rows][groups * width] of the same type.
void split_groups(DType dtype, const void* from, int64_t rows, int64_t groups, int64_t width, void* to,
                  device::Stream& stream);

/// to [rows][groups * width] from float32 [groups][rows][width], plus the bias [groups * width] of to's type
/// if it is not null, rounded once.
void join_groups(const float* from, const void* bias, int64_t rows, int64_t groups, int64_t width,
                 DType dtype, void* to, device::Stream& stream);

}  // namespace lockstep::ops
