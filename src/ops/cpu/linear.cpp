#include <algorithm>

#include "ops/cpu/chained_products.h"
#include "ops/cpu/replica_fold.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

/// x is [rows, in], the weight [units, in], y [rows, units].
class LinearKernel : public Kernel {
 public:
  LinearKernel(const Linear& op, const TensorSpec& input, const KernelOptions& options)
      : bias_(op.bias),
        rows_(input.shape.count() / input.shape[-1] * options.batch),
        units_(op.units),
        replicas_(options.virtual_replicas),
        products_(rows_, units_, input.shape[-1], replicas_, options.intra_op_threads) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    switch (phase) {
      case KernelPhase::forward:
        return products_.forward_bytes();
      case KernelPhase::backward_input:
        return products_.input_gradient_bytes();
      case KernelPhase::backward_weight:
        break;
    }
    // The product and the bias's sums follow each other and share the memory.
    return std::max(products_.weight_gradient_bytes(), bias_ ? column_chain_bytes(units_, replicas_) : 0);
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, x = arguments.inputs[0].as<const float>(),
                   weight = arguments.parameters[0].as<const float>(),
                   bias = bias_ ? arguments.parameters[1].as<const float>() : nullptr,
                   y = arguments.outputs[0].as<float>(),
                   workspace = arguments.workspace] { products_.forward(x, weight, bias, y, workspace); });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([this, dy = arguments.output_gradients[0].as<const float>(),
                   weight = arguments.parameters[0].as<const float>(),
                   dx = arguments.input_gradients[0].as<float>(),
                   workspace = arguments.workspace] { products_.input_gradient(dy, weight, dx, workspace); });
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, dy = arguments.output_gradients[0].as<const float>(),
                   x = arguments.inputs[0].as<const float>(),
                   dweight = arguments.parameter_gradients[0].as<float>(),
                   dbias = bias_ ? arguments.parameter_gradients[1].as<float>() : nullptr,
                   accumulate = arguments.accumulate, workspace = arguments.workspace] {
      products_.weight_gradient(dy, x, dweight, accumulate, workspace);
      if (dbias != nullptr)
        column_chains(dy, rows_, units_, replicas_, accumulate, dbias, static_cast<float*>(workspace));
    });
  }

 private:
  bool bias_;
  int64_t rows_, units_;
  int replicas_;
  ChainedProducts products_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Linear& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<LinearKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
