#include "ops/cuda/map.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 1024;  // of the sum: eight for each of an H200's 132 multiprocessors

/// Elements of a micro-batch that count.
struct Counted {
  const StepConstants* constants;
  int64_t first_sample, batch, each;
  __device__ int64_t elements() const { return each * counted_samples(*constants, first_sample, batch); }
};

/// Each block adds up a fixed share of the elements, in double as on CPUs. Both tensors are read once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    squares_kernel(const T* prediction, const T* target, Counted counted, double* sums) {
  const int64_t count = counted.elements();
  __shared__ double scratch[device::kWarpSize + 1];
  const int64_t step = int64_t{gridDim.x} * kThreads * kPackElements<T>;
  double sum = 0;
  for (int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPackElements<T>; at < count;
       at += step) {
    const ElementPack<T> a = load_elements(prediction + at, count - at),
                         b = load_elements(target + at, count - at);
#pragma unroll
    for (int e = 0; e < kPackElements<T>; ++e) {
      const double error = double{static_cast<float>(a.value[e])} - double{static_cast<float>(b.value[e])};
      sum = std::fma(error, error, sum);
    }
  }
  sum = device::block_sum(sum, scratch);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

/// Adds up the blocks' sums, in one block.
__global__ void __launch_bounds__(kThreads)
    metrics_kernel(const double* sums, int blocks, Counted counted, bool accumulate, double* metrics) {
  __shared__ double scratch[device::kWarpSize + 1];
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < blocks; i += kThreads) sum += sums[i];
  sum = device::block_sum(sum, scratch);
  if (threadIdx.x != 0) return;
  if (!accumulate)
    for (int m = 0; m < kMetricCount; ++m) metrics[m] = 0;
  metrics[kLossSum] += sum;
  metrics[kCount] += static_cast<double>(counted.elements());
}

struct ErrorGradient {
  const StepConstants* constants;
  double loss_weight;
  __device__ float operator()(float prediction, float target) const {
    return (prediction - target) * static_cast<float>(2 * loss_weight * constants->loss_scale);
  }
};

class MeanSquaredErrorKernel : public Kernel {
 public:
  MeanSquaredErrorKernel(int64_t each, const KernelOptions& options)
      : batch_(options.batch),
        each_(each),
        count_(each * options.batch),
        blocks_(device::blocks_for(count_, kThreads * kPackElements<float>, kMostBlocks)),
        loss_weight_(options.loss_weight) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    return phase == KernelPhase::forward ? blocks_ * int64_t{sizeof(double)} : 0;
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    const Tensor &prediction = arguments.inputs[0], &target = arguments.inputs[1];
    auto* sums = static_cast<double*>(arguments.workspace);
    const Counted counted{arguments.constants, arguments.first_sample, batch_, each_};
    with_element_type(prediction.dtype, [&]<class T>(T) {
      device::launch(stream, {.blocks = blocks_, .threads = kThreads}, squares_kernel<T>,
                     prediction.as<const T>(), target.as<const T>(), counted, sums);
    });
    device::launch(stream, {.blocks = 1, .threads = kThreads}, metrics_kernel, sums,
                   static_cast<int>(blocks_), counted, arguments.accumulate, arguments.metrics);
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    const Tensor& gradient = arguments.input_gradients[0];
    if (gradient.data == nullptr) return;
    with_element_type(gradient.dtype, [&]<class T>(T) {
      launch_map(stream, gradient.as<T>(), arguments.inputs[0].as<const T>(),
                 arguments.inputs[1].as<const T>(), count_, ErrorGradient{arguments.constants, loss_weight_});
    });
  }

 private:
  int64_t batch_, each_, count_;  // samples, elements of one, of all
  unsigned blocks_;
  double loss_weight_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const MeanSquaredError&, Inputs inputs,
                                        const KernelOptions& options) {
  return std::make_unique<MeanSquaredErrorKernel>(inputs[0].shape.count(), options);
}

}  // namespace lockstep::ops
