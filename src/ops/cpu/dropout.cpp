#include <algorithm>
#include <cstring>

#include "ops/cpu/dropout_factors.h"
#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

constexpr int64_t kPiece = 1024;  // elements whose factors are held at once

class DropoutKernel : public Kernel {
 public:
  DropoutKernel(const Dropout& op, const TensorSpec& input, const KernelOptions& options)
      : rate_(options.training ? op.rate : 0.0f), sample_count_(input.shape.count()), options_(options) {}

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
      stream.launch([from = from.data, to = to.data, size = static_cast<size_t>(from.size_bytes())] {
        std::memcpy(to, from, size);
      });
      return;
    }
    stream.launch([x = from.as<const float>(), y = to.as<float>(), constants = arguments.constants,
                   first_sample = arguments.first_sample, rate = rate_, count = sample_count_,
                   options = options_] {
      const DropoutMask mask = make_dropout_mask(rate, options.op_number, *constants);
      const int64_t pieces = (count + kPiece - 1) / kPiece;
      parallel_for(options.intra_op_threads, options.batch * pieces, [&](int64_t index) {
        const int64_t sample = index / pieces, begin = index % pieces * kPiece,
                      size = std::min(kPiece, count - begin);
        float factors[kPiece];
        loops().dropout_factors(mask, static_cast<uint32_t>(begin / 4),
                                static_cast<uint32_t>(first_sample + sample), (size + 3) / 4, factors);
        const float* from_piece = x + sample * count + begin;
        float* to_piece = y + sample * count + begin;
        for (int64_t i = 0; i < size; ++i) to_piece[i] = from_piece[i] * factors[i];
      });
    });
  }

  float rate_;
  int64_t sample_count_;
  KernelOptions options_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Dropout& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<DropoutKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
