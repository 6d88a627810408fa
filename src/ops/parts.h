#pragma once

#include <memory>
#include <span>
#include <type_traits>
#include <variant>

#include "ops/op.h"

namespace lockstep::ops {

// The parts of an op. The alternatives of `Op` (lockstep/ops.h) are the table of ops; each op's sources
// specialise these functions for it. Nothing is defined here, so an op that lacks one of them does not link,
// and an op that is not in the table does not compile.

using Inputs = std::span<const TensorSpec>;

template <class O, class Table>
inline constexpr bool kIsAlternative = false;
template <class O, class... Ops>
inline constexpr bool kIsAlternative<O, std::variant<Ops...>> = (std::is_same_v<O, Ops> || ...);
template <class O>
concept OneOp = kIsAlternative<O, Op>;

// In ops/<op>.cpp: shape rule and cost, which infer() and cost() ask for.
template <OneOp O>
OpSignature infer_op(const O& op, Inputs inputs);
template <OneOp O>
OpCost cost_op(const O& op, Inputs inputs, int64_t batch);

/// In ops/cpu/<op>.cpp. REQUIRES: options.compute is float32; make_kernel() widens narrower types.
template <OneOp O>
std::unique_ptr<Kernel> make_cpu_kernel(const O& op, Inputs inputs, const KernelOptions& options);

/// In ops/cuda/<op>.cu, for the emulated GPU, too. Like all kernels it is made without a device.
template <OneOp O>
std::unique_ptr<Kernel> make_gpu_kernel(const O& op, Inputs inputs, const KernelOptions& options);

}  // namespace lockstep::ops
