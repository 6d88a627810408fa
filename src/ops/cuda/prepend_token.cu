#include "ops/cuda/elements.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

constexpr int kThreads = 256;

/// Elements of a sample without and with the token, which has `channels`.
struct TokenSizes {
  int64_t batch, count, channels;
  LOCKSTEP_HOST_DEVICE int64_t whole() const { return count + channels; }
};

template <class T>
__global__ void __launch_bounds__(kThreads) prepend_kernel(TokenSizes s, const T* x, const T* token, T* y) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x, sample = at / s.whole(),
                i = at % s.whole();
  if (sample >= s.batch) return;
  y[at] = i < s.channels ? token[i] : x[sample * s.count + i - s.channels];
}

template <class T>
__global__ void __launch_bounds__(kThreads) drop_token_kernel(TokenSizes s, const T* dy, T* dx) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x, sample = at / s.count, i = at % s.count;
  if (sample < s.batch) dx[at] = dy[sample * s.whole() + s.channels + i];
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_tokens_kernel(TokenSizes s, const T* dy, bool accumulate, float* sums) {
  const int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (c >= s.channels) return;
  float sum = accumulate ? sums[c] : 0.0f;
  for (int64_t sample = 0; sample < s.batch; ++sample) sum += static_cast<float>(dy[sample * s.whole() + c]);
  sums[c] = sum;
}

class PrependTokenKernel : public Kernel {
 public:
  PrependTokenKernel(const Shape& sequence, const KernelOptions& options)
      : sizes_{options.batch, sequence.count(), sequence[1]} {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    with_element_type(arguments.outputs[0].dtype, [&]<class T>(T) {
      device::launch(stream, grid(sizes_.batch * sizes_.whole()), prepend_kernel<T>, sizes_,
                     arguments.inputs[0].as<const T>(), arguments.parameters[0].as<const T>(),
                     arguments.outputs[0].as<T>());
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    with_element_type(arguments.input_gradients[0].dtype, [&]<class T>(T) {
      device::launch(stream, grid(sizes_.batch * sizes_.count), drop_token_kernel<T>, sizes_,
                     arguments.output_gradients[0].as<const T>(), arguments.input_gradients[0].as<T>());
    });
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    with_element_type(arguments.output_gradients[0].dtype, [&]<class T>(T) {
      device::launch(stream, grid(sizes_.channels), sum_tokens_kernel<T>, sizes_,
                     arguments.output_gradients[0].as<const T>(), arguments.accumulate,
                     arguments.parameter_gradients[0].as<float>());
    });
  }

 private:
  static device::Grid grid(int64_t count) {
    return {.blocks = device::blocks_for(count, kThreads, INT32_MAX), .threads = kThreads};
  }

  TokenSizes sizes_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const PrependToken&, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<PrependTokenKernel>(inputs[0].shape, options);
}

}  // namespace lockstep::ops
