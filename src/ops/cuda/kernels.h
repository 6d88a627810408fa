#pragma once

#include <memory>

#include "ops/op.h"
#include "ops/rules.h"

namespace lockstep::ops {

// Makers of the GPU kernels, defined in ops/cuda/<op>.cu. Like all kernels they are made without a device. An
// op without a line here does not compile.

std::unique_ptr<Kernel> make_gpu_kernel(const Relu& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Gelu& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Sigmoid& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Tanh& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Add& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Fork& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Dropout& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Embedding& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const PositionEmbedding& op, Inputs inputs,
                                        const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const MeanSquaredError& op, Inputs inputs,
                                        const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Flatten& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Reshape& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Linear& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Conv2d& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Pool2d& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const GlobalPool2d& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const BatchNorm& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const LayerNorm& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const Attention& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_gpu_kernel(const SoftmaxCrossEntropy& op, Inputs inputs,
                                        const KernelOptions& options);

}  // namespace lockstep::ops
