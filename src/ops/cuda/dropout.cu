#include "ops/cuda/elements.h"
#include "ops/elementwise.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

constexpr int kThreads = 256;

/// A thread has one pack of one sample: the generator, about 100 instructions for four elements, leaves
/// little to gain from more. Every element is read and written once, no mask is stored.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(T* to, const T* from, RowPacks samples, int64_t first_sample, float rate,
                   uint32_t op_number, const StepConstants* constants) {
  constexpr uint32_t kGroups = kPackElements<T> / 4;  // of elements that share one number of the generator
  const uint32_t index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= samples.packs) return;
  const uint32_t sample = index / samples.row_packs, pack = index % samples.row_packs;
  const int64_t in_sample = int64_t{pack} * kPackElements<T>, count = samples.row_elements - in_sample,
                at = sample * samples.row_elements + in_sample;
  ElementPack<T> values = load_elements(from + at, count, samples.packed);
  const DropoutMask mask = DropoutMask::of(rate, op_number, constants->seed, constants->step);
#pragma unroll
  for (uint32_t group = 0; group < kGroups; ++group) {
    float factor[4];
    mask.factors(pack * kGroups + group, static_cast<uint32_t>(first_sample) + sample, factor);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      T& value = values.value[group * 4 + i];
      value = T(static_cast<float>(value) * factor[i]);  // NaN stays, as on CPUs
    }
  }
  store_elements(to + at, values, count, samples.packed);
}

class DropoutKernel : public Kernel {
 public:
  DropoutKernel(const Dropout& op, const TensorSpec& input, const KernelOptions& options)
      : rate_(options.training ? op.rate : 0.0f),
        batch_(options.batch),
        sample_count_(input.shape.count()),
        op_number_(options.op_number) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    apply(arguments.inputs[0], arguments.outputs[0], arguments, stream);
  }
  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    apply(arguments.output_gradients[0], arguments.input_gradients[0], arguments, stream);
  }

 private:
  // The mask is linear: gradients pass through it as values do.
  void apply(const Tensor& from, const Tensor& to, const KernelArguments& arguments,
             device::Stream& stream) const {
    if (to.data == nullptr) return;
    if (rate_ == 0) {
      stream.copy(to.data, from.data, from.size_bytes());
      return;
    }
    with_element_type(from.dtype, [&]<class T>(T) {
      const RowPacks samples = row_packs_of(batch_, sample_count_, kPackElements<T>);
      device::launch(stream,
                     {.blocks = device::blocks_for(samples.packs, kThreads, 0x7fffffff), .threads = kThreads},
                     dropout_kernel<T>, to.as<T>(), from.as<const T>(), samples, arguments.first_sample,
                     rate_, op_number_, arguments.constants);
    });
  }

  float rate_;
  int64_t batch_, sample_count_;
  uint32_t op_number_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Dropout& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<DropoutKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
