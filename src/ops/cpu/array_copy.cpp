#include "ops/array_copy.h"

#include <algorithm>

#include "ops/cpu/parallel.h"

namespace lockstep::ops {
namespace {

/// Rows are what lies along the last dimension.
void copy(const ArrayCopy& copy, const float* from, float* to, int threads) {
  const int last = copy.rank - 1;
  const int64_t row = copy.dims[last], from_stride = copy.from_strides[last],
                to_stride = copy.to_strides[last];
  const int64_t at_once = std::max<int64_t>(1, 16384 / row);
  parallel_pieces(threads, copy.count() / row, at_once, [&](int64_t begin, int64_t end) {
    for (int64_t number = begin; number < end; ++number) {
      int64_t left = number, from_at = copy.from_offset, to_at = copy.to_offset;
      for (int d = last; d-- > 0; left /= copy.dims[d]) {
        from_at += left % copy.dims[d] * copy.from_strides[d];
        to_at += left % copy.dims[d] * copy.to_strides[d];
      }
      if (from_stride == 1 && to_stride == 1)
        std::copy_n(from + from_at, row, to + to_at);
      else
        for (int64_t i = 0; i < row; ++i) to[to_at + i * to_stride] = from[from_at + i * from_stride];
    }
  });
}

class ArrayCopyKernel : public Kernel {
 public:
  ArrayCopyKernel(const ArrayCopies& copies, int threads)
      : leaves_out_(copies.leaves_out), threads_(threads) {
    for (const ArrayCopy& of_input : copies.of_inputs) copies_.push_back(of_input.joined());
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    for (size_t i = 0; i < copies_.size(); ++i)
      stream.launch([this, i, from = arguments.inputs[i].as<const float>(),
                     to = arguments.outputs[0].as<float>()] { copy(copies_[i], from, to, threads_); });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    for (size_t i = 0; i < copies_.size(); ++i) {
      const Tensor& gradient = arguments.input_gradients[i];
      if (gradient.data == nullptr) continue;
      stream.launch([this, i, from = arguments.output_gradients[0].as<const float>(),
                     to = gradient.as<float>(), count = gradient.count()] {
        if (leaves_out_) std::fill_n(to, count, 0.0f);
        copy(copies_[i].inverse(), from, to, threads_);
      });
    }
  }

 private:
  std::vector<ArrayCopy> copies_;
  bool leaves_out_;
  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Concatenate& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<ArrayCopyKernel>(copies_of(op, inputs, options.batch), options.intra_op_threads);
}
template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Slice& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<ArrayCopyKernel>(copies_of(op, inputs, options.batch), options.intra_op_threads);
}
template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Transpose& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<ArrayCopyKernel>(copies_of(op, inputs, options.batch), options.intra_op_threads);
}

}  // namespace lockstep::ops
