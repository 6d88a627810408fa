#pragma once

#include <fmt/format.h>

#include <memory>

#include "lockstep/error.h"
#include "ops/op.h"
#include "ops/rules.h"

namespace lockstep {

// Makers of the GPU kernels, defined in ops/cuda/<op>.cu. Like all kernels they are made without a device.

template <class AnyOp>
std::unique_ptr<Kernel> make_gpu_kernel(const AnyOp& op, Inputs, const KernelOptions&) {
  throw DeviceError(fmt::format("op {} has no GPU kernel yet; use --device cpu", name_of(Op(op))));
}

}  // namespace lockstep
