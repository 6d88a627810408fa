#include <algorithm>

#include "ops/cpu/parallel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

class PrependTokenKernel : public Kernel {
 public:
  PrependTokenKernel(const Shape& sequence, const KernelOptions& options)
      : count_(sequence.count()),
        channels_(sequence[1]),
        batch_(options.batch),
        threads_(options.intra_op_threads) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, x = arguments.inputs[0].as<const float>(),
                   token = arguments.parameters[0].as<const float>(), y = arguments.outputs[0].as<float>()] {
      parallel_for(threads_, batch_, [=, this](int64_t sample) {
        float* const to = y + sample * (count_ + channels_);
        std::copy_n(token, channels_, to);
        std::copy_n(x + sample * count_, count_, to + channels_);
      });
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([this, dy = arguments.output_gradients[0].as<const float>(),
                   dx = arguments.input_gradients[0].as<float>()] {
      parallel_for(threads_, batch_, [=, this](int64_t sample) {
        std::copy_n(dy + sample * (count_ + channels_) + channels_, count_, dx + sample * count_);
      });
    });
  }

  /// Chains over the samples, which go on from micro-batch to micro-batch.
  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, dy = arguments.output_gradients[0].as<const float>(),
                   sums = arguments.parameter_gradients[0].as<float>(), accumulate = arguments.accumulate] {
      if (!accumulate) std::fill_n(sums, channels_, 0.0f);
      for (int64_t sample = 0; sample < batch_; ++sample)
        for (int64_t c = 0; c < channels_; ++c) sums[c] += dy[sample * (count_ + channels_) + c];
    });
  }

 private:
  int64_t count_, channels_, batch_;
  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const PrependToken&, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<PrependTokenKernel>(inputs[0].shape, options);
}

}  // namespace lockstep::ops
