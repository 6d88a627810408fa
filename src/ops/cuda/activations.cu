#include "ops/cuda/formulas.h"
#include "ops/cuda/map.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

template <class Formula>
class ActivationKernel : public Kernel {
 public:
  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    const Tensor &x = arguments.inputs[0], &y = arguments.outputs[0];
    with_element_type(x.dtype, [&]<class T>(T) {
      launch_map(stream, y.as<T>(), x.as<const T>(), x.count(), Forward<Formula, MathFor<T>>{});
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    const Tensor &dx = arguments.input_gradients[0], &dy = arguments.output_gradients[0];
    if (dx.data == nullptr) return;
    const bool reads_output = Formula::kBackwardReads == ForwardValue::output;
    const Tensor& value = reads_output ? arguments.outputs[0] : arguments.inputs[0];
    with_element_type(dx.dtype, [&]<class T>(T) {
      launch_map(stream, dx.as<T>(), dy.as<const T>(), value.as<const T>(), dx.count(),
                 Backward<Formula, MathFor<T>>{});
    });
  }
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Relu&, Inputs, const KernelOptions&) {
  return std::make_unique<ActivationKernel<ReluFormula>>();
}
template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Gelu&, Inputs, const KernelOptions&) {
  return std::make_unique<ActivationKernel<GeluFormula>>();
}
template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Silu&, Inputs, const KernelOptions&) {
  return std::make_unique<ActivationKernel<SiluFormula>>();
}
template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Sigmoid&, Inputs, const KernelOptions&) {
  return std::make_unique<ActivationKernel<SigmoidFormula>>();
}
template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Tanh&, Inputs, const KernelOptions&) {
  return std::make_unique<ActivationKernel<TanhFormula>>();
}

}  // namespace lockstep::ops
