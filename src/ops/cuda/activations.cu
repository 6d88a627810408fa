#include <optional>

#include "ops/cuda/column_sum_kernel.h"
#include "ops/cuda/formulas.h"
#include "ops/cuda/map.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

/// The gradient that an activation's backward writes: each element of the sources is read, and of the result
/// written, once.
template <class T, int N, class Function>
struct GradientColumns {
  T* dx;
  const T *dy, *value;
  Function function;

  __device__ device::Pack<T, N> operator()(int64_t at) const {
    const auto gradients = load_pack<N>(dy + at), values = load_pack<N>(value + at);
    device::Pack<T, N> results;
#pragma unroll
    for (int i = 0; i < N; ++i)
      results.value[i] =
          T(function(static_cast<float>(gradients.value[i]), static_cast<float>(values.value[i])));
    store_pack(dx + at, results);
    return results;
  }
};

template <class Formula>
class ActivationKernel : public Kernel {
 public:
  ActivationKernel(const TensorSpec& input, const KernelOptions& options) {
    if (!options.fused.bias_before) return;
    const int64_t columns = input.shape[-1], samples = options.batch / options.virtual_replicas;
    bias_sum_.emplace(input.shape.count() / columns * samples, columns, options.compute,
                      options.virtual_replicas);
  }

  int64_t workspace_bytes(KernelPhase phase) const override {
    return phase == KernelPhase::backward_input && bias_sum_ ? bias_sum_->workspace_bytes() : 0;
  }

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
      using Function = Backward<Formula, MathFor<T>>;
      if (!bias_sum_ || arguments.parameter_gradients.empty())
        return launch_map(stream, dx.as<T>(), dy.as<const T>(), value.as<const T>(), dx.count(), Function{});
      sum_columns<T>(
          *bias_sum_,
          [&]<int N>(std::integral_constant<int, N>) {
            return GradientColumns<T, N, Function>{dx.as<T>(), dy.as<const T>(), value.as<const T>(), {}};
          },
          arguments.parameter_gradients.back().as<float>(), arguments.accumulate, arguments.workspace,
          stream);
    });
  }

 private:
  std::optional<ColumnSum> bias_sum_;  ///< of the linear layer before it, if this kernel may sum it
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Relu&, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<ActivationKernel<ReluFormula>>(inputs[0], options);
}
template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Gelu& op, Inputs inputs, const KernelOptions& options) {
  if (op.kind == GeluKind::erf) return std::make_unique<ActivationKernel<GeluErfFormula>>(inputs[0], options);
  return std::make_unique<ActivationKernel<GeluFormula>>(inputs[0], options);
}
template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Silu&, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<ActivationKernel<SiluFormula>>(inputs[0], options);
}
template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Sigmoid&, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<ActivationKernel<SigmoidFormula>>(inputs[0], options);
}
template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Tanh&, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<ActivationKernel<TanhFormula>>(inputs[0], options);
}

}  // namespace lockstep::ops
