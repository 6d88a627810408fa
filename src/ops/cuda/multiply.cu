#include "ops/cuda/map.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

struct ProductOfTwo {
  LOCKSTEP_HOST_DEVICE float operator()(float a, float b) const { return a * b; }
};

/// Backward reads the output's gradient twice: 2 * 3 elements are moved in place of 5.
class MultiplyKernel : public Kernel {
 public:
  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    product(arguments.outputs[0], arguments.inputs[0], arguments.inputs[1], stream);
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    for (size_t i = 0; i < 2; ++i)
      if (arguments.input_gradients[i].data != nullptr)
        product(arguments.input_gradients[i], arguments.output_gradients[0], arguments.inputs[1 - i], stream);
  }

 private:
  static void product(const Tensor& to, const Tensor& first, const Tensor& second, device::Stream& stream) {
    with_element_type(to.dtype, [&]<class T>(T) {
      launch_map(stream, to.as<T>(), first.as<const T>(), second.as<const T>(), to.count(), ProductOfTwo{});
    });
  }
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Multiply&, Inputs, const KernelOptions&) {
  return std::make_unique<MultiplyKernel>();
}

}  // namespace lockstep::ops
