#include "ops/cpu/parallel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

constexpr int64_t kProductPiece = 16384;  // elements that a thread takes at a time

class MultiplyKernel : public Kernel {
 public:
  explicit MultiplyKernel(const KernelOptions& options) : threads_(options.intra_op_threads) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    product(arguments.outputs[0], arguments.inputs[0], arguments.inputs[1], stream);
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    for (size_t i = 0; i < 2; ++i)
      if (arguments.input_gradients[i].data != nullptr)
        product(arguments.input_gradients[i], arguments.output_gradients[0], arguments.inputs[1 - i], stream);
  }

 private:
  void product(const Tensor& to, const Tensor& first, const Tensor& second, device::Stream& stream) const {
    stream.launch([y = to.as<float>(), a = first.as<const float>(), b = second.as<const float>(),
                   count = to.count(), threads = threads_] {
      parallel_pieces(threads, count, kProductPiece, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) y[i] = a[i] * b[i];
      });
    });
  }

  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Multiply&, Inputs, const KernelOptions& options) {
  return std::make_unique<MultiplyKernel>(options);
}

}  // namespace lockstep::ops
