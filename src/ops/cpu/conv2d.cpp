#include <algorithm>

#include "ops/checks.h"
#include "ops/cpu/convolution.h"
#include "ops/cpu/replica_fold.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

ConvolutionSizes sizes_of(const Conv2d& op, const Shape& image, int64_t batch) {
  const Shape output =
      window_output(op.kName, image, op.kernel, op.stride, op.padding, op.channels, op.dilation);
  return {.batch = batch,
          .height = image[0],
          .width = image[1],
          .channels = image[2],
          .kernel = op.kernel,
          .stride = op.stride,
          .padding = op.padding,
          .out_height = output[0],
          .out_width = output[1],
          .units = op.channels,
          .groups = op.groups,
          .dilation = op.dilation};
}

class Conv2dKernel : public Kernel {
 public:
  Conv2dKernel(const Conv2d& op, const TensorSpec& input, const KernelOptions& options)
      : bias_(op.bias),
        replicas_(options.virtual_replicas),
        sizes_(sizes_of(op, input.shape, options.batch)),
        convolution_(sizes_, replicas_, options.intra_op_threads) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    switch (phase) {
      case KernelPhase::forward:
        return convolution_.forward_bytes();
      case KernelPhase::backward_input:
        return convolution_.input_gradient_bytes();
      case KernelPhase::backward_weight:
        break;
    }
    // The convolution and the bias's sums follow each other and share the memory.
    return std::max(convolution_.weight_gradient_bytes(),
                    bias_ ? column_chain_bytes(sizes_.units, replicas_) : 0);
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch(
        [this, x = arguments.inputs[0].as<const float>(), weight = arguments.parameters[0].as<const float>(),
         bias = bias_ ? arguments.parameters[1].as<const float>() : nullptr,
         y = arguments.outputs[0].as<float>(), workspace = static_cast<float*>(arguments.workspace)] {
          convolution_.forward(x, weight, bias, y, workspace);
        });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([this, dy = arguments.output_gradients[0].as<const float>(),
                   weight = arguments.parameters[0].as<const float>(),
                   dx = arguments.input_gradients[0].as<float>(),
                   workspace = static_cast<float*>(arguments.workspace)] {
      convolution_.input_gradient(dy, weight, dx, workspace);
    });
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, dy = arguments.output_gradients[0].as<const float>(),
                   x = arguments.inputs[0].as<const float>(),
                   dweight = arguments.parameter_gradients[0].as<float>(),
                   dbias = bias_ ? arguments.parameter_gradients[1].as<float>() : nullptr,
                   accumulate = arguments.accumulate, workspace = static_cast<float*>(arguments.workspace)] {
      convolution_.weight_gradient(dy, x, dweight, accumulate, workspace);
      if (dbias != nullptr)
        column_chains(dy, sizes_.batch * sizes_.pixels(), sizes_.units, replicas_, accumulate, dbias,
                      workspace);
    });
  }

 private:
  bool bias_;
  int replicas_;
  ConvolutionSizes sizes_;
  Convolution convolution_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Conv2d& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<Conv2dKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
