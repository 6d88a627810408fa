#pragma once

#include "ops/op.h"

namespace lockstep::ops {

/// Throws ConfigError if a micro-batch in training has a single value per channel, which has no variance.
void expect_variance(const BatchNorm& op, const Shape& input, const KernelOptions& options);

}  // namespace lockstep::ops
