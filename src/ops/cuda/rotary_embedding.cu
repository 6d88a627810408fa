#include "lockstep/error.h"
#include "ops/cuda/elements.h"
#include "ops/parts.h"
#include "ops/rotary.h"

namespace lockstep::ops {
namespace {

constexpr int kThreads = 128;

struct Heads {
  int64_t positions;
  int head_size, turned, all;
  RotaryFrequencies frequencies;
};

/// A thread has one pair of elements at one position, in all heads of one sample: it computes the angle once.
/// Moves every element once; neighboring threads have neighboring pairs of a head.
template <class T, bool kInverse>
__global__ void __launch_bounds__(kThreads) rotate_kernel(T* to, const T* from, Heads heads) {
  const int half = heads.head_size / 2;
  const int64_t index = int64_t{blockIdx.x} * kThreads + threadIdx.x, position = index / half;
  if (position >= heads.positions) return;
  const int pair = static_cast<int>(index % half);
  const Rotation forth = Rotation::of(position, pair, heads.frequencies);
  const Rotation rotation = kInverse ? forth.inverse() : forth;
  int64_t at = (int64_t{blockIdx.y} * heads.positions + position) * heads.all * heads.head_size + pair;
  for (int head = 0; head < heads.all; ++head, at += heads.head_size) {
    const T first = from[at], second = from[at + half];
    if (head < heads.turned) {
      const auto x = static_cast<float>(first), y = static_cast<float>(second);
      to[at] = T(rotation.first(x, y));
      to[at + half] = T(rotation.second(x, y));
    } else {
      to[at] = first;
      to[at + half] = second;
    }
  }
}

class RotaryEmbeddingKernel : public Kernel {
 public:
  RotaryEmbeddingKernel(const RotaryEmbedding& op, const TensorSpec& input, const KernelOptions& options)
      : heads_{input.shape[0], static_cast<int>(op.head_size),
               static_cast<int>(op.heads == 0 ? input.shape[1] / op.head_size : op.heads),
               static_cast<int>(input.shape[1] / op.head_size), RotaryFrequencies(op)},
        batch_(options.batch) {
    if (batch_ > kMostSamples)
      throw ConfigError(
          "rotary_embedding: GPU kernels take at most 65535 samples in a micro-batch; use "
          "smaller micro-batches");
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    launch<false>(arguments.inputs[0], arguments.outputs[0], stream);
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    launch<true>(arguments.output_gradients[0], arguments.input_gradients[0], stream);
  }

 private:
  static constexpr int64_t kMostSamples = 65535;  // a dimension of the grid

  template <bool kInverse>
  void launch(const Tensor& from, const Tensor& to, device::Stream& stream) const {
    const int64_t pairs = heads_.positions * (heads_.head_size / 2);
    const device::Grid grid{
        .blocks = dim3(device::blocks_for(pairs, kThreads, INT32_MAX), static_cast<unsigned>(batch_)),
        .threads = kThreads};
    with_element_type(to.dtype, [&]<class T>(T) {
      device::launch(stream, grid, rotate_kernel<T, kInverse>, to.as<T>(), from.as<const T>(), heads_);
    });
  }

  Heads heads_;
  int64_t batch_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const RotaryEmbedding& op, Inputs inputs,
                                        const KernelOptions& options) {
  return std::make_unique<RotaryEmbeddingKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
