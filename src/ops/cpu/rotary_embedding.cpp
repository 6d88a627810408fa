#include <cstring>
#include <vector>

#include "ops/cpu/parallel.h"
#include "ops/cpu/row_range.h"
#include "ops/parts.h"
#include "ops/rotary.h"

namespace lockstep::ops {
namespace {

class RotaryEmbeddingKernel : public Kernel {
 public:
  RotaryEmbeddingKernel(const RotaryEmbedding& op, const TensorSpec& input, const KernelOptions& options)
      : op_(op),
        positions_(input.shape[0]),
        width_(input.shape[1]),
        turned_heads_(op.heads == 0 ? width_ / op.head_size : op.heads),
        options_(options) {}

  void prepare(device::Device&) override {
    const RotaryFrequencies frequencies(op_);
    const int64_t half = op_.head_size / 2;
    for (auto* table : {&cosines_, &sines_}) table->resize(static_cast<size_t>(positions_ * half));
    for (int64_t position = 0; position < positions_; ++position)
      for (int64_t pair = 0; pair < half; ++pair) {
        const Rotation rotation = Rotation::of(position, pair, frequencies);
        const auto at = static_cast<size_t>(position * half + pair);
        cosines_[at] = rotation.cosine;
        sines_[at] = rotation.sine;
      }
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    launch<false>(arguments.inputs[0], arguments.outputs[0], rows_of(options_, arguments, positions_),
                  stream);
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    launch<true>(arguments.output_gradients[0], arguments.input_gradients[0], {0, positions_}, stream);
  }

 private:
  template <bool kInverse>
  void launch(const Tensor& from, const Tensor& to, RowRange rows, device::Stream& stream) {
    stream.launch([this, x = from.as<const float>(), y = to.as<float>(), rows] {
      parallel_for(options_.intra_op_threads, options_.batch * rows.count(), [&](int64_t i) {
        const int64_t position = rows.begin + i % rows.count();
        const int64_t row = i / rows.count() * positions_ + position;
        turn_row<kInverse>(x + row * width_, y + row * width_, position);
      });
    });
  }

  template <bool kInverse>
  void turn_row(const float* __restrict x, float* __restrict y, int64_t position) const {
    const int64_t half = op_.head_size / 2;
    const float* const cosines = cosines_.data() + position * half;
    const float* const sines = sines_.data() + position * half;
    for (int64_t head = 0; head < turned_heads_; ++head) {
      const int64_t first = head * op_.head_size, second = first + half;
      for (int64_t i = 0; i < half; ++i) {
        const Rotation forth{cosines[i], sines[i]}, rotation = kInverse ? forth.inverse() : forth;
        y[first + i] = rotation.first(x[first + i], x[second + i]);
        y[second + i] = rotation.second(x[first + i], x[second + i]);
      }
    }
    const int64_t turned = turned_heads_ * op_.head_size;
    std::memcpy(y + turned, x + turned, static_cast<size_t>(width_ - turned) * sizeof(float));
  }

  RotaryEmbedding op_;
  int64_t positions_, width_, turned_heads_;
  KernelOptions options_;
  std::vector<float> cosines_, sines_;  // [positions, head_size / 2]
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const RotaryEmbedding& op, Inputs inputs,
                                        const KernelOptions& options) {
  return std::make_unique<RotaryEmbeddingKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
