#include "ops/cuda/kernels.h"
#include "ops/cuda/map.h"

namespace lockstep {
namespace {

/// Both gradients in one pass over theirs.
template <class T>
__global__ void __launch_bounds__(kMapThreads)
    copy_to_both_kernel(T* first, T* second, const T* from, int64_t count) {
  constexpr int64_t kStep = int64_t{kMapThreads} * kPackElements<T>;
  const int64_t begin = blockIdx.x * kStep * kMapPacks + int64_t{threadIdx.x} * kPackElements<T>;
  ElementPack<T> packs[kMapPacks];
#pragma unroll
  for (int p = 0; p < kMapPacks; ++p)
    if (const int64_t at = begin + p * kStep; at < count) packs[p] = load_elements(from + at, count - at);
#pragma unroll
  for (int p = 0; p < kMapPacks; ++p)
    if (const int64_t at = begin + p * kStep; at < count) {
      store_elements(first + at, packs[p], count - at);
      store_elements(second + at, packs[p], count - at);
    }
}

class AddKernel : public Kernel {
 public:
  void forward(const KernelArguments& arguments, Stream& stream) override {
    const Tensor& y = arguments.outputs[0];
    with_element_type(y.dtype, [&]<class T>(T) {
      launch_map(stream, y.as<T>(), arguments.inputs[0].as<const T>(), arguments.inputs[1].as<const T>(),
                 y.count(), SumOfTwo{});
    });
  }

  void backward_input(const KernelArguments& arguments, Stream& stream) override {
    const Tensor& dy = arguments.output_gradients[0];
    void *first = arguments.input_gradients[0].data, *second = arguments.input_gradients[1].data;
    if (first != nullptr && second != nullptr) {
      with_element_type(dy.dtype, [&]<class T>(T) {
        launch(stream, map_grid(dy.count(), kPackElements<T>), copy_to_both_kernel<T>, static_cast<T*>(first),
               static_cast<T*>(second), dy.as<const T>(), dy.count());
      });
    } else if (void* only = first != nullptr ? first : second; only != nullptr) {
      stream.copy(only, dy.data, dy.size_bytes());
    }
  }
};

}  // namespace

std::unique_ptr<Kernel> make_gpu_kernel(const Add&, Inputs, const KernelOptions&) {
  return std::make_unique<AddKernel>();
}

}  // namespace lockstep
