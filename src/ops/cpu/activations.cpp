#include "ops/cpu/parallel.h"
#include "ops/elementwise.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

constexpr int64_t kPiece = 16384;  // elements that a thread takes at a time

template <class Formula>
void map_forward(float* __restrict y, const float* __restrict x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = Formula::forward(x[i]);
}

template <class Formula>
void map_backward(float* __restrict dx, const float* __restrict dy, const float* __restrict value,
                  int64_t count) {
  for (int64_t i = 0; i < count; ++i) dx[i] = Formula::backward(dy[i], value[i]);
}

template <class Formula>
class ActivationKernel : public Kernel {
 public:
  explicit ActivationKernel(const KernelOptions& options) : threads_(options.intra_op_threads) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([x = arguments.inputs[0].as<const float>(), y = arguments.outputs[0].as<float>(),
                   count = arguments.inputs[0].count(), threads = threads_] {
      parallel_pieces(threads, count, kPiece, [=](int64_t begin, int64_t end) {
        map_forward<Formula>(y + begin, x + begin, end - begin);
      });
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    const bool reads_output = Formula::kBackwardReads == ForwardValue::output;
    const Tensor& value = reads_output ? arguments.outputs[0] : arguments.inputs[0];
    stream.launch([value = value.as<const float>(), dy = arguments.output_gradients[0].as<const float>(),
                   dx = arguments.input_gradients[0].as<float>(), count = value.count(), threads = threads_] {
      parallel_pieces(threads, count, kPiece, [=](int64_t begin, int64_t end) {
        map_backward<Formula>(dx + begin, dy + begin, value + begin, end - begin);
      });
    });
  }

 private:
  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Relu&, Inputs, const KernelOptions& options) {
  return std::make_unique<ActivationKernel<ReluFormula>>(options);
}
template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Gelu&, Inputs, const KernelOptions& options) {
  return std::make_unique<ActivationKernel<GeluFormula>>(options);
}
template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Sigmoid&, Inputs, const KernelOptions& options) {
  return std::make_unique<ActivationKernel<SigmoidFormula>>(options);
}
template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Tanh&, Inputs, const KernelOptions& options) {
  return std::make_unique<ActivationKernel<TanhFormula>>(options);
}

}  // namespace lockstep::ops
