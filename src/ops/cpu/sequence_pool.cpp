#include <algorithm>

#include "ops/cpu/parallel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

class SequencePoolKernel : public Kernel {
 public:
  SequencePoolKernel(const SequencePool& op, const Shape& sequence, const KernelOptions& options)
      : kind_(op.kind),
        positions_(sequence[0]),
        channels_(sequence[1]),
        batch_(options.batch),
        threads_(options.intra_op_threads) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([this, inputs = arguments.inputs[0].as<const float>(), mask = mask_of(arguments),
                   outputs = arguments.outputs[0].as<float>()] {
      parallel_for(threads_, batch_, [=, this](int64_t sample) {
        const float* x = inputs + sample * positions_ * channels_;
        float* y = outputs + sample * channels_;
        const Counted counted = count(mask, sample);
        std::fill_n(y, channels_, 0.0f);
        if (counted.number == 0) return;
        if (kind_ != SequencePoolKind::mean) {
          std::copy_n(x + counted.last * channels_, channels_, y);
          if (kind_ == SequencePoolKind::ends)
            std::copy_n(x + counted.first * channels_ + half(), half(), y + half());
          return;
        }
        for (int64_t t = 0; t < positions_; ++t)
          if (counts(mask, sample, t))
            for (int64_t c = 0; c < channels_; ++c) y[c] += x[t * channels_ + c];
        for (int64_t c = 0; c < channels_; ++c) y[c] /= static_cast<float>(counted.number);
      });
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([this, gradients = arguments.output_gradients[0].as<const float>(),
                   mask = mask_of(arguments), input_gradients = arguments.input_gradients[0].as<float>()] {
      parallel_for(threads_, batch_, [=, this](int64_t sample) {
        const float* dy = gradients + sample * channels_;
        float* dx = input_gradients + sample * positions_ * channels_;
        const Counted counted = count(mask, sample);
        std::fill_n(dx, positions_ * channels_, 0.0f);
        if (counted.number == 0) return;
        if (kind_ == SequencePoolKind::mean) {
          for (int64_t t = 0; t < positions_; ++t)
            if (counts(mask, sample, t))
              for (int64_t c = 0; c < channels_; ++c)
                dx[t * channels_ + c] = dy[c] / static_cast<float>(counted.number);
          return;
        }
        const int64_t at_last = kind_ == SequencePoolKind::ends ? half() : channels_;
        std::copy_n(dy, at_last, dx + counted.last * channels_);
        std::copy_n(dy + at_last, channels_ - at_last, dx + counted.first * channels_ + at_last);
      });
    });
  }

 private:
  struct Counted {
    int64_t number = 0, first = 0, last = 0;
  };

  static const float* mask_of(const KernelArguments& arguments) {
    return arguments.inputs.size() > 1 ? arguments.inputs[1].as<const float>() : nullptr;
  }
  int64_t half() const { return channels_ / 2; }
  bool counts(const float* mask, int64_t sample, int64_t t) const {
    return mask == nullptr || mask[sample * positions_ + t] != 0.0f;
  }
  Counted count(const float* mask, int64_t sample) const {
    Counted counted;
    for (int64_t t = 0; t < positions_; ++t) {
      if (!counts(mask, sample, t)) continue;
      if (counted.number++ == 0) counted.first = t;
      counted.last = t;
    }
    return counted;
  }

  SequencePoolKind kind_;
  int64_t positions_, channels_, batch_;
  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const SequencePool& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<SequencePoolKernel>(op, inputs[0].shape, options);
}

}  // namespace lockstep::ops
