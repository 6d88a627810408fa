#include "base/ensure.h"
#include "ops/cuda/map.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

class ForkKernel : public Kernel {
 public:
  void forward(const KernelArguments& arguments, device::Stream&) override {
    for (const Tensor& output : arguments.outputs)
      ensure(output.data == arguments.inputs[0].data, "fork: an output is not its input's memory");
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    const Tensor& sum = arguments.input_gradients[0];
    if (sum.data == nullptr) return;
    with_element_type(sum.dtype, [&]<class T>(T) {
      launch_map(stream, sum.as<T>(), arguments.output_gradients[0].as<const T>(),
                 arguments.output_gradients[1].as<const T>(), sum.count(), SumOfTwo{});
    });
  }
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Fork&, Inputs, const KernelOptions&) {
  return std::make_unique<ForkKernel>();
}

}  // namespace lockstep::ops
