#include <type_traits>

#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/elementwise.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

constexpr int64_t kPiece = 16384;  // elements that a thread takes at a time

template <class Formula>
class ActivationKernel : public Kernel {
 public:
  ActivationKernel(const ElementwiseLoops& loops, const KernelOptions& options)
      : loops_(loops), threads_(options.intra_op_threads), forks_(options.fused.fork_behind) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([x = arguments.inputs[0].as<const float>(), y = arguments.outputs[0].as<float>(),
                   count = arguments.inputs[0].count(), forward = loops_.forward, threads = threads_] {
      parallel_pieces(threads, count, kPiece,
                      [=](int64_t begin, int64_t end) { forward(y + begin, x + begin, end - begin); });
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    const bool reads_output = Formula::kBackwardReads == ForwardValue::output;
    const Tensor& value = reads_output ? arguments.outputs[0] : arguments.inputs[0];
    if constexpr (std::is_same_v<Formula, ReluFormula>)
      if (forks_) return backward_of_two(arguments, stream);
    stream.launch([value = value.as<const float>(), dy = arguments.output_gradients[0].as<const float>(),
                   dx = arguments.input_gradients[0].as<float>(), count = value.count(),
                   backward = loops_.backward, threads = threads_] {
      parallel_pieces(threads, count, kPiece, [=](int64_t begin, int64_t end) {
        backward(dx + begin, dy + begin, value + begin, end - begin);
      });
    });
  }

 private:
  /// Of the two readers of a fork behind the ReLU.
  void backward_of_two(const KernelArguments& arguments, device::Stream& stream) {
    stream.launch([value = arguments.outputs[0].as<const float>(),
                   gradient = arguments.output_gradients[0].as<const float>(),
                   other = arguments.output_gradients[1].as<const float>(),
                   dx = arguments.input_gradients[0].as<float>(), count = arguments.outputs[0].count(),
                   threads = threads_] {
      parallel_pieces(threads, count, kPiece, [=](int64_t begin, int64_t end) {
        loops().relu_backward_of_two(dx + begin, gradient + begin, other + begin, value + begin, end - begin);
      });
    });
  }

  ElementwiseLoops loops_;
  int threads_;
  bool forks_;  ///< behind it (FusedNeighbors)
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Relu&, Inputs, const KernelOptions& options) {
  return std::make_unique<ActivationKernel<ReluFormula>>(loops().relu, options);
}
template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Gelu& op, Inputs, const KernelOptions& options) {
  if (op.kind == GeluKind::erf)
    return std::make_unique<ActivationKernel<GeluErfFormula>>(loops().gelu_erf, options);
  return std::make_unique<ActivationKernel<GeluFormula>>(loops().gelu, options);
}
template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Silu&, Inputs, const KernelOptions& options) {
  return std::make_unique<ActivationKernel<SiluFormula>>(loops().silu, options);
}
template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Sigmoid&, Inputs, const KernelOptions& options) {
  return std::make_unique<ActivationKernel<SigmoidFormula>>(loops().sigmoid, options);
}
template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Tanh&, Inputs, const KernelOptions& options) {
  return std::make_unique<ActivationKernel<TanhFormula>>(loops().tanh, options);
}

}  // namespace lockstep::ops
