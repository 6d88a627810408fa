#include <algorithm>
#include <cmath>

#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

// Gradients of parameters are summed over blocks of so many rows, then over the blocks: an order that does
// not depend on how many threads share the blocks.
constexpr int64_t kBlockRows = 32;

struct Sizes {
  int64_t rows = 0, channels = 0;
  int64_t blocks() const { return (rows + kBlockRows - 1) / kBlockRows; }
};

class LayerNormKernel : public Kernel {
 public:
  LayerNormKernel(const LayerNorm& op, const TensorSpec& input, const KernelOptions& options)
      : op_(op),
        sizes_{input.shape.count() / input.shape[-1] * options.batch, input.shape[-1]},
        threads_(options.intra_op_threads) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    if (phase != KernelPhase::backward_input) return 0;
    return sizes_.blocks() * 2 * sizes_.channels * static_cast<int64_t>(sizeof(float));
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
    const Gradient gradient{
        arguments.inputs[0].as<const float>(),     arguments.output_gradients[0].as<const float>(),
        arguments.parameters[0].as<const float>(), arguments.auxiliary[0].as<const float>(),
        arguments.auxiliary[1].as<const float>(),  arguments.input_gradients[0].as<float>(),
        static_cast<float*>(arguments.workspace)};
    stream.launch([gradient, dweight = arguments.parameter_gradients[0].as<float>(),
                   dbias = op_.bias ? arguments.parameter_gradients[1].as<float>() : nullptr,
                   accumulate = arguments.accumulate, sizes = sizes_, threads = threads_] {
      parallel_for(threads, sizes.blocks(), [&](int64_t block) { gradient.compute(block, sizes); });
      const auto fold_blocks = [&](float* to, int64_t part) {
        for (int64_t c = 0; c < sizes.channels; ++c) {
          float sum = 0;
          for (int64_t block = 0; block < sizes.blocks(); ++block)
            sum += gradient.block_sums[(2 * block + part) * sizes.channels + c];
          to[c] = accumulate ? to[c] + sum : sum;
        }
      };
      fold_blocks(dweight, 0);
      if (dbias != nullptr) fold_blocks(dbias, 1);
    });
  }

 private:
  struct Gradient {
    const float *x, *dy, *weight, *means, *inverses;
    float* dx;          // null where not wanted
    float* block_sums;  // [blocks, 2, channels]: of dy n, then of dy

    void compute(int64_t block, const Sizes& sizes) const {
      const int64_t channels = sizes.channels;
      float *weight_sums = block_sums + 2 * block * channels, *bias_sums = weight_sums + channels;
      const LayerNormLoops& layer_norm = loops().layer_norm;
      std::fill(weight_sums, weight_sums + 2 * channels, 0.0f);
      const int64_t end = std::min(sizes.rows, (block + 1) * kBlockRows);
      for (int64_t row = block * kBlockRows; row < end; ++row) {
        const float *row_x = x + row * channels, *row_dy = dy + row * channels;
        const LayerNormRow known{means[row], inverses[row], weight, nullptr};
        layer_norm.add_parameter_gradients(weight_sums, bias_sums, row_dy, row_x, known, channels);
        if (dx != nullptr) layer_norm.input_gradient(dx + row * channels, row_dy, row_x, known, channels);
      }
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
