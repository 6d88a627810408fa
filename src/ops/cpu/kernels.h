#pragma once

#include <memory>
#include <span>

#include "ops/op.h"
#include "ops/rules.h"

namespace lockstep::ops {

// Makers of the CPU kernels, defined in ops/cpu/<op>.cpp.

std::unique_ptr<Kernel> make_cpu_kernel(const Linear& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const Conv2d& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const Pool2d& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const GlobalPool2d& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const BatchNorm& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const LayerNorm& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const Embedding& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const PositionEmbedding& op, Inputs inputs,
                                        const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const Attention& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const Dropout& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const Relu& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const Gelu& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const Sigmoid& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const Tanh& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const Add& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const Fork& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const Flatten& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const Reshape& op, Inputs inputs, const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const SoftmaxCrossEntropy& op, Inputs inputs,
                                        const KernelOptions& options);
std::unique_ptr<Kernel> make_cpu_kernel(const MeanSquaredError& op, Inputs inputs,
                                        const KernelOptions& options);

}  // namespace lockstep::ops
