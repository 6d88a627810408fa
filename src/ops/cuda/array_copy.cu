#include "base/ensure.h"
#include "ops/array_copy.h"
#include "ops/cuda/elements.h"

namespace lockstep::ops {
namespace {

constexpr int kThreads = 256;

/// Each thread moves one element: neighbours along the last dimension of what is written.
template <class T>
__global__ void __launch_bounds__(kThreads)
    array_copy_kernel(ArrayCopy copy, int64_t count, const T* from, T* to) {
  int64_t left = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (left >= count) return;
  int64_t from_at = copy.from_offset, to_at = copy.to_offset;
  for (int d = copy.rank; d-- > 0; left /= copy.dims[d]) {
    from_at += left % copy.dims[d] * copy.from_strides[d];
    to_at += left % copy.dims[d] * copy.to_strides[d];
  }
  to[to_at] = from[from_at];
}

template <class T>
__global__ void __launch_bounds__(kThreads) clear_kernel(int64_t count, T* to) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at < count) to[at] = T(0.0f);
}

device::Grid grid_of(int64_t count) {
  ensure(count < int64_t{kThreads} * INT32_MAX, "a GPU kernel was given too many elements to move");
  return {.blocks = device::blocks_for(count, kThreads, INT32_MAX), .threads = kThreads};
}

class ArrayCopyKernel : public Kernel {
 public:
  explicit ArrayCopyKernel(const ArrayCopies& copies) : leaves_out_(copies.leaves_out) {
    for (const ArrayCopy& of_input : copies.of_inputs) copies_.push_back(of_input.joined());
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    for (size_t i = 0; i < copies_.size(); ++i)
      launch(copies_[i], arguments.inputs[i], arguments.outputs[0], stream);
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    for (size_t i = 0; i < copies_.size(); ++i) {
      const Tensor& gradient = arguments.input_gradients[i];
      if (gradient.data == nullptr) continue;
      if (leaves_out_)
        with_element_type(gradient.dtype, [&]<class T>(T) {
          device::launch(stream, grid_of(gradient.count()), clear_kernel<T>, gradient.count(),
                         gradient.as<T>());
        });
      launch(copies_[i].inverse(), arguments.output_gradients[0], gradient, stream);
    }
  }

 private:
  static void launch(const ArrayCopy& copy, const Tensor& from, const Tensor& to, device::Stream& stream) {
    with_element_type(to.dtype, [&]<class T>(T) {
      device::launch(stream, grid_of(copy.count()), array_copy_kernel<T>, copy, copy.count(),
                     from.as<const T>(), to.as<T>());
    });
  }

  std::vector<ArrayCopy> copies_;
  bool leaves_out_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Concatenate& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<ArrayCopyKernel>(copies_of(op, inputs, options.batch));
}
template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Slice& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<ArrayCopyKernel>(copies_of(op, inputs, options.batch));
}
template <>
std::unique_ptr<Kernel> make_gpu_kernel(const Transpose& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<ArrayCopyKernel>(copies_of(op, inputs, options.batch));
}

}  // namespace lockstep::ops
