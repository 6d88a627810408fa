#include "ops/cuda/elements.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

constexpr int kThreads = 128;

struct Sequence {
  int64_t batch, positions, channels;
  SequencePoolKind kind;
};

/// What a thread computes: a channel of a sample.
struct Channel {
  int64_t sample, channel;
  bool works;
  int64_t number = 0, first = 0, last = 0;  ///< positions that count

  template <class T>
  __device__ Channel(const Sequence& s, const T* mask)
      : sample((int64_t{blockIdx.x} * kThreads + threadIdx.x) / s.channels),
        channel((int64_t{blockIdx.x} * kThreads + threadIdx.x) % s.channels),
        works(sample < s.batch) {
    if (!works) return;
    for (int64_t t = 0; t < s.positions; ++t) {
      if (!counts(s, mask, t)) continue;
      if (number++ == 0) first = t;
      last = t;
    }
  }
  template <class T>
  __device__ bool counts(const Sequence& s, const T* mask, int64_t t) const {
    return mask == nullptr || static_cast<float>(mask[sample * s.positions + t]) != 0.0f;
  }
  /// The position that LAST and ENDS take.
  __device__ int64_t taken(const Sequence& s) const {
    return s.kind == SequencePoolKind::ends && channel >= s.channels / 2 ? first : last;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    sequence_pool_kernel(Sequence s, const T* x, const T* mask, T* y) {
  const Channel at(s, mask);
  if (!at.works) return;
  const T* const from = x + at.sample * s.positions * s.channels + at.channel;
  float result = 0.0f;
  if (s.kind == SequencePoolKind::mean) {
    for (int64_t t = 0; t < s.positions; ++t)
      if (at.counts(s, mask, t)) result += static_cast<float>(from[t * s.channels]);
    if (at.number > 0) result /= static_cast<float>(at.number);
  } else if (at.number > 0) {
    result = static_cast<float>(from[at.taken(s) * s.channels]);
  }
  y[at.sample * s.channels + at.channel] = T(result);
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    sequence_spread_kernel(Sequence s, const T* dy, const T* mask, T* dx) {
  const Channel at(s, mask);
  if (!at.works) return;
  const auto gradient = static_cast<float>(dy[at.sample * s.channels + at.channel]);
  T* const to = dx + at.sample * s.positions * s.channels + at.channel;
  const bool is_mean = s.kind == SequencePoolKind::mean;
  const T share = T(is_mean ? gradient / static_cast<float>(at.number) : gradient);
  for (int64_t t = 0; t < s.positions; ++t) {
    const bool takes = at.counts(s, mask, t) && (is_mean || t == at.taken(s));
    to[t * s.channels] = takes ? share : T(0.0f);
  }
}

class SequencePoolKernel : public Kernel {
 public:
  SequencePoolKernel(const SequencePool& op, const Shape& sequence, const KernelOptions& options)
      : sequence_{options.batch, sequence[0], sequence[1], op.kind} {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    with_element_type(arguments.outputs[0].dtype, [&]<class T>(T) {
      device::launch(stream, grid(), sequence_pool_kernel<T>, sequence_, arguments.inputs[0].as<const T>(),
                     mask_of<T>(arguments), arguments.outputs[0].as<T>());
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    with_element_type(arguments.input_gradients[0].dtype, [&]<class T>(T) {
      device::launch(stream, grid(), sequence_spread_kernel<T>, sequence_,
                     arguments.output_gradients[0].as<const T>(), mask_of<T>(arguments),
                     arguments.input_gradients[0].as<T>());
    });
  }

 private:
  template <class T>
  static const T* mask_of(const KernelArguments& arguments) {
    return arguments.inputs.size() > 1 ? arguments.inputs[1].as<const T>() : nullptr;
  }
  device::Grid grid() const {
    return {.blocks = device::blocks_for(sequence_.batch * sequence_.channels, kThreads, INT32_MAX),
            .threads = kThreads};
  }

  Sequence sequence_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_gpu_kernel(const SequencePool& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<SequencePoolKernel>(op, inputs[0].shape, options);
}

}  // namespace lockstep::ops
