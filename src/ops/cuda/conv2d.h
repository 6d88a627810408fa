#pragma once

#include "ops/op.h"

namespace lockstep::ops {

/// Whether the kernel computes all virtual replicas of a micro-batch at once: their columns are in memory
/// together. Of larger ones each fills a GPU by itself, and they are computed one after the other.
bool joins_replicas(const Conv2d& op, const TensorSpec& input, const KernelOptions& options);

}  // namespace lockstep::ops
