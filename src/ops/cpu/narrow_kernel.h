#pragma once

#include <functional>
#include <memory>

#include "ops/op.h"
#include "ops/parts.h"

namespace lockstep::ops {

/// Makes the float32 kernel of an op do with tensors of two-byte elements: they are widened into workspace,
/// the kernel runs, and what it made is rounded. So an op's arithmetic on CPUs is float32 whatever its
/// storage, and a GPU kernel has something simple to be compared with. `float32_kernel` is made with
/// options.compute float32.
///
/// Tensors say by their type whether they are narrow; parameters that the op's signature calls narrow,
/// activations and their gradients are. Gradients of parameters, auxiliary tensors and metrics are as ever.
/// Ops that only name their input's memory anew have nothing to convert, and get their kernel back.
std::unique_ptr<Kernel> make_narrow_kernel(const Op& op, Inputs inputs, const KernelOptions& options,
                                           std::unique_ptr<Kernel> float32_kernel);

}  // namespace lockstep::ops
