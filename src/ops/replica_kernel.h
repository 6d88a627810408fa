#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "ops/op.h"
#include "ops/parts.h"

namespace lockstep::ops {

/// Kernels of GPUs move 16 bytes at once: each virtual replica has a multiple of so many samples, if there
/// are several, so that its part of every tensor begins where such a pack may.
inline constexpr int64_t kReplicaSamplesOnGpu = 8;

/// Launches to[i] += from[i] on the stream; the two do not overlap.
using Addition = std::function<void(float* to, const float* from, int64_t count, device::Stream& stream)>;

/// Makes the kernel of one virtual replica do with a micro-batch of several: it runs once for each, and
/// gradients of parameters are folded along the canonical tree. Every result has the bits that it has if the
/// replicas are micro-batches of their own. For ops that have no kernel of their own for that.
/// `kernel_of_one` is made with options_of_one(options).
/// REQUIRES of calls: they do not accumulate.
std::unique_ptr<Kernel> make_replica_kernel(const Op& op, Inputs inputs, const KernelOptions& options,
                                            std::unique_ptr<Kernel> kernel_of_one, Addition add);

/// Those of a micro-batch of one of the virtual replicas. REQUIRES: they are equal parts.
KernelOptions options_of_one(const KernelOptions& options);

/// Whether an op's kernel sums over samples, as losses and gradients of parameters do, or takes statistics of
/// them (batch norm). If so, it knows of virtual replicas or runs once for each. The others compute samples
/// one by one.
bool sums_over_samples(const OpSignature& signature);

}  // namespace lockstep::ops
