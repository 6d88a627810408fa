#include "ops/cuda/kernels.h"
#include "ops/cuda/map.h"
#include "ops/elementwise.h"

namespace lockstep {
namespace {

/// For results that two bytes hold. With PreciseMath, arithmetic rather than memory would bound the kernels
/// on them.
struct ApproximateMath {
  static constexpr float kLog2E = 1.4426950408889634f;
  __device__ static float exp(float x) { return fast_exp2(x * kLog2E); }
  __device__ static float divide(float a, float b) { return fast_divide(a, b); }
  __device__ static float tanh(float x) {
    const float magnitude = std::fabs(x);
    // Near 0 the subtraction would cancel; there the series' next term is below 1e-7.
    const float near = x * std::fma(x * x, -1.0f / 3, 1.0f);
    const float far = std::copysign(1.0f - fast_divide(2.0f, 1.0f + exp(2 * magnitude)), x);
    return magnitude < 0.03f ? near : far;
  }
};
template <class T>
using MathFor = std::conditional_t<sizeof(T) == 2, ApproximateMath, PreciseMath>;

template <class Formula, class Math>
struct Forward {
  __device__ float operator()(float x) const { return Formula::template forward<Math>(x); }
};
template <class Formula, class Math>
struct Backward {
  __device__ float operator()(float gradient, float value) const {
    return Formula::template backward<Math>(gradient, value);
  }
};

template <class Formula>
class ActivationKernel : public Kernel {
 public:
  void forward(const KernelArguments& arguments, Stream& stream) override {
    const Tensor &x = arguments.inputs[0], &y = arguments.outputs[0];
    with_element_type(x.dtype, [&]<class T>(T) {
      launch_map(stream, y.as<T>(), x.as<const T>(), x.count(), Forward<Formula, MathFor<T>>{});
    });
  }

  void backward_input(const KernelArguments& arguments, Stream& stream) override {
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

std::unique_ptr<Kernel> make_gpu_kernel(const Relu&, Inputs, const KernelOptions&) {
  return std::make_unique<ActivationKernel<ReluFormula>>();
}
std::unique_ptr<Kernel> make_gpu_kernel(const Gelu&, Inputs, const KernelOptions&) {
  return std::make_unique<ActivationKernel<GeluFormula>>();
}
std::unique_ptr<Kernel> make_gpu_kernel(const Sigmoid&, Inputs, const KernelOptions&) {
  return std::make_unique<ActivationKernel<SigmoidFormula>>();
}
std::unique_ptr<Kernel> make_gpu_kernel(const Tanh&, Inputs, const KernelOptions&) {
  return std::make_unique<ActivationKernel<TanhFormula>>();
}

}  // namespace lockstep
