#include "ops/cpu/parallel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

class MeanSquaredErrorKernel : public Kernel {
 public:
  MeanSquaredErrorKernel(int64_t each, const KernelOptions& options)
      : batch_(options.batch),
        each_(each),
        count_(each * options.batch),
        loss_weight_(options.loss_weight),
        threads_(options.intra_op_threads) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([prediction = arguments.inputs[0].as<const float>(),
                   target = arguments.inputs[1].as<const float>(), metrics = arguments.metrics,
                   accumulate = arguments.accumulate, constants = arguments.constants,
                   first_sample = arguments.first_sample, batch = batch_, each = each_] {
      const int64_t count = each * counted_samples(*constants, first_sample, batch);
      if (!accumulate)
        for (int i = 0; i < kMetricCount; ++i) metrics[i] = 0;
      // One chain of additions that goes on from micro-batch to micro-batch: how a leaf is cut changes no
      // bit.
      double sum = metrics[kLossSum];
      for (int64_t i = 0; i < count; ++i) {
        const double error = static_cast<double>(prediction[i]) - static_cast<double>(target[i]);
        sum += error * error;
      }
      metrics[kLossSum] = sum;
      metrics[kCount] += static_cast<double>(count);
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([prediction = arguments.inputs[0].as<const float>(),
                   target = arguments.inputs[1].as<const float>(),
                   gradient = arguments.input_gradients[0].as<float>(), constants = arguments.constants,
                   loss_weight = loss_weight_, count = count_, threads = threads_] {
      constexpr int64_t kPiece = 16384;
      const auto factor = static_cast<float>(2 * loss_weight * constants->loss_scale);
      parallel_pieces(threads, count, kPiece, [=](int64_t begin, int64_t end) {
        const float* __restrict p = prediction;
        const float* __restrict t = target;
        float* __restrict g = gradient;
        for (int64_t i = begin; i < end; ++i) g[i] = (p[i] - t[i]) * factor;
      });
    });
  }

 private:
  int64_t batch_, each_, count_;  // samples, elements of one, of all
  double loss_weight_;
  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const MeanSquaredError&, Inputs inputs,
                                        const KernelOptions& options) {
  return std::make_unique<MeanSquaredErrorKernel>(inputs[0].shape.count(), options);
}

}  // namespace lockstep::ops
