#include "base/ensure.h"
#include "ops/cpu/sum.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

class ForkKernel : public Kernel {
 public:
  explicit ForkKernel(const KernelOptions& options) : threads_(options.intra_op_threads) {}

  void forward(const KernelArguments& arguments, device::Stream&) override {
    for (const Tensor& output : arguments.outputs)
      ensure(output.data == arguments.inputs[0].data, "fork: an output is not its input's memory");
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([a = arguments.output_gradients[0].as<const float>(),
                   b = arguments.output_gradients[1].as<const float>(),
                   sum = arguments.input_gradients[0].as<float>(),
                   count = arguments.input_gradients[0].count(),
                   threads = threads_] { sum_of_two(sum, a, b, count, threads); });
  }

 private:
  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Fork&, Inputs, const KernelOptions& options) {
  return std::make_unique<ForkKernel>(options);
}

}  // namespace lockstep::ops
