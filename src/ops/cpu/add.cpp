#include <cstring>

#include "ops/cpu/kernels.h"
#include "ops/cpu/sum.h"

namespace lockstep {
namespace {

class AddKernel : public Kernel {
 public:
  explicit AddKernel(const KernelOptions& options) : threads_(options.intra_op_threads) {}

  void forward(const KernelArguments& arguments, Stream& stream) override {
    stream.launch([a = arguments.inputs[0].as<const float>(), b = arguments.inputs[1].as<const float>(),
                   y = arguments.outputs[0].as<float>(), count = arguments.outputs[0].count(),
                   threads = threads_] { sum_of_two(y, a, b, count, threads); });
  }

  void backward_input(const KernelArguments& arguments, Stream& stream) override {
    const Tensor& gradient = arguments.output_gradients[0];
    stream.launch([dy = gradient.data, da = arguments.input_gradients[0].data,
                   db = arguments.input_gradients[1].data,
                   size = static_cast<size_t>(gradient.size_bytes())] {
      for (void* dx : {da, db})
        if (dx != nullptr) std::memcpy(dx, dy, size);
    });
  }

 private:
  int threads_;
};

}  // namespace

std::unique_ptr<Kernel> make_cpu_kernel(const Add&, Inputs, const KernelOptions& options) {
  return std::make_unique<AddKernel>(options);
}

}  // namespace lockstep
