#include "ops/cpu/columns.h"
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
            sum_columns(pixels_, lanes_, y, [x](int64_t i, int64_t) { return x[i]; });
            for (int64_t c = 0; c < lanes_.columns; ++c) y[c] /= static_cast<float>(pixels_);
          });
        });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([this, gradients = arguments.output_gradients[0].as<const float>(),
                   input_gradients = arguments.input_gradients[0].as<float>()] {
      parallel_for(threads_, batch_, [=, this](int64_t sample) {
        const LaneValues gradient(gradients + sample * lanes_.columns, lanes_);
        const float* __restrict dy = gradient.data();
        float* __restrict dx = input_gradients + sample * pixels_ * lanes_.columns;
        const auto pixels = static_cast<float>(pixels_);
        for_lanes(pixels_, lanes_, [=](int64_t i, int64_t lane) { dx[i] = dy[lane] / pixels; });
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
