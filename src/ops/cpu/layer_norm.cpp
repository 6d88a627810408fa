#include <algorithm>
#include <cmath>

#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

struct Sizes {
  int64_t rows = 0, channels = 0;
};

class LayerNormKernel : public Kernel {
 public:
  LayerNormKernel(const LayerNorm& op, const TensorSpec& input, const KernelOptions& options)
      : op_(op),
        sizes_{input.shape.count() / input.shape[-1] * options.batch, input.shape[-1]},
        threads_(options.intra_op_threads) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    // Sums of a bias that there is not.
    const bool sums = phase == KernelPhase::backward_input && !op_.bias;
    return sums ? sizes_.channels * static_cast<int64_t>(sizeof(float)) : 0;
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([x = arguments.inputs[0].as<const float>(), y = arguments.outputs[0].as<float>(),
                   weight = arguments.parameters[0].as<const float>(),
                   bias = op_.bias ? arguments.parameters[1].as<const float>() : nullptr,
                   means = arguments.auxiliary[0].as<float>(), inverses = arguments.auxiliary[1].as<float>(),
                   epsilon = op_.epsilon, sizes = sizes_, threads = threads_] {
      parallel_for(threads, sizes.rows, [=, &layer_norm = loops().layer_norm](int64_t row) {
        const int64_t channels = sizes.channels;
        float variance = 0;
        layer_norm.moments(x + row * channels, channels, &means[row], &variance);
        inverses[row] = 1.0f / std::sqrt(variance + epsilon);
        layer_norm.normalize(y + row * channels, x + row * channels,
                             {means[row], inverses[row], weight, bias}, channels);
      });
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    const Gradient gradient{.x = arguments.inputs[0].as<const float>(),
                            .dy = arguments.output_gradients[0].as<const float>(),
                            .weight = arguments.parameters[0].as<const float>(),
                            .means = arguments.auxiliary[0].as<const float>(),
                            .inverses = arguments.auxiliary[1].as<const float>(),
                            .dx = arguments.input_gradients[0].as<float>(),
                            .dweight = arguments.parameter_gradients[0].as<float>(),
                            .dbias = op_.bias ? arguments.parameter_gradients[1].as<float>()
                                              : static_cast<float*>(arguments.workspace),
                            .channels = sizes_.channels};
    stream.launch([gradient, accumulate = arguments.accumulate, rows = sizes_.rows, threads = threads_] {
      if (!accumulate) {
        std::fill_n(gradient.dweight, gradient.channels, 0.0f);
        std::fill_n(gradient.dbias, gradient.channels, 0.0f);
      }
      if (threads == 1) {  // while a row lies in the cache
        for (int64_t row = 0; row < rows; ++row) {
          gradient.of_input(row);
          gradient.add_parameters(row, 0, gradient.channels);
        }
        return;
      }
      parallel_for(threads, rows, [&](int64_t row) { gradient.of_input(row); });
      parallel_for(threads, threads, [&](int64_t thread) {
        const int64_t begin = gradient.channels * thread / threads,
                      end = gradient.channels * (thread + 1) / threads;
        for (int64_t row = 0; row < rows; ++row) gradient.add_parameters(row, begin, end);
      });
    });
  }

 private:
  /// Gradients of parameters are chains over the rows, whoever computes them: they depend neither on threads
  /// nor on how rows are cut into micro-batches.
  struct Gradient {
    const float *x, *dy, *weight, *means, *inverses;
    float* dx;  // null if not wanted
    float *dweight, *dbias;
    int64_t channels;

    LayerNormRow known(int64_t row) const { return {means[row], inverses[row], weight, nullptr}; }

    void of_input(int64_t row) const {
      if (dx == nullptr) return;
      loops().layer_norm.input_gradient(dx + row * channels, dy + row * channels, x + row * channels,
                                        known(row), channels);
    }
    void add_parameters(int64_t row, int64_t begin, int64_t end) const {
      const int64_t at = row * channels + begin;
      loops().layer_norm.add_parameter_gradients(dweight + begin, dbias + begin, dy + at, x + at, known(row),
                                                 end - begin);
    }
  };

  LayerNorm op_;
  Sizes sizes_;
  int threads_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const LayerNorm& op, Inputs inputs, const KernelOptions& options) {
  return std::make_unique<LayerNormKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
