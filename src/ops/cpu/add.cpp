#include "ops/cpu/sum.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

class AddKernel : public Kernel {
 public:
  explicit AddKernel(const KernelOptions& options) : threads_(options.intra_op_threads) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([a = arguments.inputs[0].as<const float>(), b = arguments.inputs[1].as<const float>(),
                   y = arguments.outputs[0].as<float>(), count = arguments.outputs[0].count(),
                   threads = threads_] { sum_of_two(y, a, b, count, threads); });
  }

 private:
  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Add&, Inputs, const KernelOptions& options) {
  return std::make_unique<AddKernel>(options);
}

}  // namespace lockstep::ops
