#include "ops/cuda/elements.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

constexpr int kThreads = 256;
constexpr int kPacks = 2;    // of each tensor, read by a thread of forward before it adds
constexpr int kSamples = 4;  // read by a thread of backward before it adds

/// The table stays in the L2 cache: what counts is that x is read and y written once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    add_table_kernel(T* y, const T* x, const T* table, RowPacks samples) {
  ElementPack<T> a[kPacks], b[kPacks];
  int64_t at[kPacks], count[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const uint32_t index = (blockIdx.x * kPacks + p) * kThreads + threadIdx.x;
    count[p] = 0;
    if (index >= samples.packs) continue;
    const int64_t in_sample = int64_t{index % samples.row_packs} * kPackElements<T>;
    at[p] = int64_t{index / samples.row_packs} * samples.row_elements + in_sample;
    count[p] = samples.row_elements - in_sample;
    a[p] = load_elements(x + at[p], count[p], samples.packed);
    b[p] = load_elements(table + in_sample, count[p], samples.packed);
  }
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (count[p] == 0) continue;
#pragma unroll
    for (int e = 0; e < kPackElements<T>; ++e)
      a[p].value[e] = T(static_cast<float>(a[p].value[e]) + static_cast<float>(b[p].value[e]));
    store_elements(y + at[p], a[p], count[p], samples.packed);
  }
}

/// A thread sums one pack of the table over the samples in their order. Gradients are read once, the table is
/// written once.
template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_samples_kernel(float* table, int64_t table_count, const T* gradients, int64_t sample_count,
                       int64_t batch, bool accumulate) {
  const int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kPackElements<T>;
  const int64_t count =
      sample_count - at;  // not positive in rows of the table that are beyond the samples' positions
  if (at >= table_count || (accumulate && count <= 0)) return;
  const bool packed = sample_count % kPackElements<T> == 0;
  float sums[kPackElements<T>] = {};
  for (int64_t first = 0; first < batch && count > 0; first += kSamples) {
    ElementPack<T> packs[kSamples];
#pragma unroll
    for (int s = 0; s < kSamples; ++s)
      if (first + s < batch)
        packs[s] = load_elements(gradients + (first + s) * sample_count + at, count, packed);
#pragma unroll
    for (int s = 0; s < kSamples; ++s)
      if (first + s < batch) {
#pragma unroll
        for (int e = 0; e < kPackElements<T>; ++e) sums[e] += static_cast<float>(packs[s].value[e]);
      }
  }
#pragma unroll
  for (int e = 0; e < kPackElements<T>; e += kPackElements<float>) {
    float* to = table + at + e;
    const int64_t rest = table_count - at - e;
    ElementPack<float> pack;
#pragma unroll
    for (int i = 0; i < kPackElements<float>; ++i) pack.value[i] = sums[e + i];
    if (accumulate) {
      const ElementPack<float> old = load_elements(to, rest);
#pragma unroll
      for (int i = 0; i < kPackElements<float>; ++i) pack.value[i] += old.value[i];
    }
    store_elements(to, pack, rest);
  }
}

class PositionEmbeddingKernel : public Kernel {
 public:
  PositionEmbeddingKernel(const PositionEmbedding& op, const TensorSpec& input, const KernelOptions& options)
      : batch_(options.batch),
        sample_count_(input.shape.count()),
        table_count_(op.positions * input.shape[1]) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    const Tensor& y = arguments.outputs[0];
    with_element_type(y.dtype, [&]<class T>(T) {
      const RowPacks samples = row_packs_of(batch_, sample_count_, kPackElements<T>);
      device::launch(
          stream,
          {.blocks = device::blocks_for(samples.packs, kThreads * kPacks, 0x7fffffff), .threads = kThreads},
          add_table_kernel<T>, y.as<T>(), arguments.inputs[0].as<const T>(),
          arguments.parameters[0].as<const T>(), samples);
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    const Tensor &dx = arguments.input_gradients[0], &dy = arguments.output_gradients[0];
    if (dx.data != nullptr) stream.copy(dx.data, dy.data, dy.size_bytes());
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    const Tensor& dy = arguments.output_gradients[0];
    with_element_type(dy.dtype, [&]<class T>(T) {
      device::launch(stream,
                     {.blocks = device::blocks_for(table_count_, kThreads * kPackElements<T>, 0x7fffffff),
                      .threads = kThreads},
                     sum_samples_kernel<T>, arguments.parameter_gradients[0].as<float>(), table_count_,
                     dy.as<const T>(), sample_count_, batch_, arguments.accumulate);
    });
  }

 private:
  int64_t batch_, sample_count_, table_count_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const PositionEmbedding& op, Inputs inputs,
                                        const KernelOptions& options) {
  return std::make_unique<PositionEmbeddingKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
