#pragma once

#include <fmt/format.h>

#include <memory>

#include "lockstep/error.h"
#include "ops/op.h"
#include "ops/rules.h"

namespace lockstep {

// Makers of the GPU kernels, defined in ops/cuda/<op>.cu. Like all kernels they are made without a device.

std::unique_ptr<Kernel> make_gpu_kernel(const Relu& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Gelu& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Sigmoid& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Tanh& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Add& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Fork& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Flatten& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Reshape& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Linear& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Conv2d& op, Inputs inputs, const KernelOptions& options);

template <class AnyOp>
std::unique_ptr<Kernel> make_gpu_kernel(const AnyOp& op, Inputs, const KernelOptions&) {
  throw DeviceError(fmt::format("op {} has no GPU kernel yet; use --device cpu", name_of(Op(op))));
}

}  // namespace lockstep
