#pragma once

#include <functional>
#include <memory>

#include "ops/op.h"
#include "ops/parts.h"

namespace lockstep::ops {

/// Makes the kernel of one virtual replica do with a micro-batch of several: it runs once for each, and
/// gradients of parameters are folded along the canonical tree. Every result has the bits that it has if the
/// replicas are micro-batches of their own. For ops that have no kernel of their own for that.
/// `kernel_of_one` is made with options.batch / options.virtual_replicas samples.
/// REQUIRES of calls: they do not accumulate.
std::unique_ptr<Kernel> make_replica_kernel(const Op& op, Inputs inputs, const KernelOptions& options,
                                            std::unique_ptr<Kernel> kernel_of_one);

/// Whether an op's kernel must run once for each virtual replica: if it sums over samples, as losses and
/// gradients of parameters do, or takes statistics of them (batch norm). The others compute samples one by
/// one, or know of replicas.
bool needs_replicas_apart(const Op& op, const OpSignature& signature);

}  // namespace lockstep::ops
