#include "ops/op.h"

#include <fmt/format.h>

#include <array>

#include "lockstep/error.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/narrow_kernel.h"
#include "ops/rules.h"

namespace lockstep::ops {
namespace {

template <class T>
Op make_default() {
  return T{};
}

constexpr OpTableRow kOpTable[] = {
    {Linear::kName, make_default<Linear>, true},
    {Conv2d::kName, make_default<Conv2d>, true},
    {Pool2d::kName, make_default<Pool2d>, true},
    {GlobalPool2d::kName, make_default<GlobalPool2d>, true},
    {BatchNorm::kName, make_default<BatchNorm>, true},
    {LayerNorm::kName, make_default<LayerNorm>, true},
    {Embedding::kName, make_default<Embedding>, true},
    {PositionEmbedding::kName, make_default<PositionEmbedding>, true},
    {Attention::kName, make_default<Attention>, true},
    {Dropout::kName, make_default<Dropout>, true},
    {Relu::kName, make_default<Relu>, true},
    {Gelu::kName, make_default<Gelu>, true},
    {Sigmoid::kName, make_default<Sigmoid>, true},
    {Tanh::kName, make_default<Tanh>, true},
    {Add::kName, make_default<Add>, true},
    {Fork::kName, make_default<Fork>, false},
    {Flatten::kName, make_default<Flatten>, true},
    {Reshape::kName, make_default<Reshape>, true},
    {SoftmaxCrossEntropy::kName, make_default<SoftmaxCrossEntropy>, true},
    {MeanSquaredError::kName, make_default<MeanSquaredError>, true},
};

}  // namespace

std::span<const OpTableRow> op_table() { return kOpTable; }

OpSignature infer(const Op& op, Inputs inputs) {
  return std::visit([&](const auto& o) { return infer_op(o, inputs); }, op);
}

OpCost cost(const Op& op, Inputs inputs, int64_t batch) {
  return std::visit([&](const auto& o) { return cost_op(o, inputs, batch); }, op);
}

std::unique_ptr<Kernel> make_kernel(device::DeviceKind device, const Op& op, Inputs inputs,
                                    const KernelOptions& options) {
  if (device == device::DeviceKind::cuda) return make_cuda_kernel(op, inputs, options);
  KernelOptions wide = options;
  wide.compute = DType::float32;
  auto kernel = std::visit([&](const auto& o) { return make_cpu_kernel(o, inputs, wide); }, op);
  return options.compute == DType::float32 ? std::move(kernel)
                                           : make_narrow_kernel(op, inputs, options, std::move(kernel));
}

}  // namespace lockstep::ops
