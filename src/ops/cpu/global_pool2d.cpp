#include <cstring>

#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

class GlobalPool2dKernel : public Kernel {
 public:
  GlobalPool2dKernel(const Shape& image, const KernelOptions& options)
      : pixels_(image[0] * image[1]),
        lanes_(image[2]),
        batch_(options.batch),
        threads_(options.intra_op_threads) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch(
        [this, inputs = arguments.inputs[0].as<const float>(), outputs = arguments.outputs[0].as<float>()] {
          parallel_for(threads_, batch_, [=, this](int64_t sample) {
            const float* x = inputs + sample * pixels_ * lanes_.columns;
            float* y = outputs + sample * lanes_.columns;
            loops().columns.sum(pixels_, lanes_, y, x);
            for (int64_t c = 0; c < lanes_.columns; ++c) y[c] /= static_cast<float>(pixels_);
          });
        });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([this, gradients = arguments.output_gradients[0].as<const float>(),
                   input_gradients = arguments.input_gradients[0].as<float>()] {
      parallel_for(threads_, batch_, [=, this](int64_t sample) {
        const float* __restrict dy = gradients + sample * lanes_.columns;
        float* __restrict dx = input_gradients + sample * pixels_ * lanes_.columns;
        const auto pixels = static_cast<float>(pixels_);
        for (int64_t c = 0; c < lanes_.columns; ++c) dx[c] = dy[c] / pixels;
        for (int64_t pixel = 1; pixel < pixels_; ++pixel)
          std::memcpy(dx + pixel * lanes_.columns, dx, static_cast<size_t>(lanes_.columns) * sizeof(float));
      });
    });
  }

 private:
  int64_t pixels_;
  ColumnLanes lanes_;
  int64_t batch_;
  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const GlobalPool2d&, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<GlobalPool2dKernel>(inputs[0].shape, options);
}

}  // namespace lockstep::ops
