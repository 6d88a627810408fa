#pragma once

#include "ops/cuda/columns.h"
#include "ops/op.h"

namespace lockstep::ops {

/// Whether the kernel computes all virtual replicas of a micro-batch at once: their columns are in memory
/// together. Of larger ones each fills a GPU by itself, and they are computed one after the other.
bool joins_replicas(const Conv2d& op, const TensorSpec& input, const KernelOptions& options);

Windows windows_of(const Conv2d& op, const Shape& image);

/// The kernel of a convolution of several groups. REQUIRES: one virtual replica.
std::unique_ptr<Kernel> make_grouped_convolution(const Conv2d& op, const TensorSpec& input,
                                                 const KernelOptions& options);

}  // namespace lockstep::ops
