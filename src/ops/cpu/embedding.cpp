#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lockstep/error.h"
#include "ops/cpu/parallel.h"
#include "ops/cpu/row_range.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

class EmbeddingKernel : public Kernel {
 public:
  EmbeddingKernel(const Embedding& op, const TensorSpec& input)
      : op_(op), positions_(std::max<int64_t>(1, input.shape.count())) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([tokens = arguments.inputs[0].as<const int32_t>(), count = arguments.inputs[0].count(),
                   table = arguments.parameters[0].as<const float>(), y = arguments.outputs[0].as<float>(),
                   first_sample = arguments.first_sample, op = op_, positions = positions_] {
      for (int64_t i = 0; i < count; ++i) {
        if (tokens[i] < 0 || tokens[i] >= op.vocabulary)
          throw DataError(fmt::format(
              "embedding: token {} of sample {} of the batch, position {}, is outside the vocabulary of {}; "
              "use a vocabulary that covers the data, or other data",
              tokens[i], first_sample + i / positions, i % positions, op.vocabulary));
        std::memcpy(y + i * op.width, table + tokens[i] * op.width,
                    static_cast<size_t>(op.width) * sizeof(float));
      }
    });
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([tokens = arguments.inputs[0].as<const int32_t>(), count = arguments.inputs[0].count(),
                   dy = arguments.output_gradients[0].as<const float>(),
                   table = arguments.parameter_gradients[0].as<float>(), accumulate = arguments.accumulate,
                   op = op_] {
      if (!accumulate) std::memset(table, 0, static_cast<size_t>(op.vocabulary * op.width) * sizeof(float));
      for (int64_t i = 0; i < count; ++i) {
        float* __restrict row = table + tokens[i] * op.width;
        const float* __restrict gradient = dy + i * op.width;
        for (int64_t c = 0; c < op.width; ++c) row[c] += gradient[c];
      }
    });
  }

 private:
  Embedding op_;
  int64_t positions_;  // tokens in a sample
};

class PositionEmbeddingKernel : public Kernel {
 public:
  PositionEmbeddingKernel(const PositionEmbedding& op, const TensorSpec& input, const KernelOptions& options)
      : sample_count_(input.shape.count()),
        table_count_(op.positions * input.shape[1]),
        width_(input.shape[1]),
        options_(options) {}

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    const RowRange rows = rows_of(options_, arguments, sample_count_ / width_);
    stream.launch([x = arguments.inputs[0].as<const float>(),
                   table = arguments.parameters[0].as<const float>(), y = arguments.outputs[0].as<float>(),
                   count = sample_count_, begin = rows.begin * width_, end = rows.end * width_,
                   options = options_] {
      parallel_for(options.intra_op_threads, options.batch, [=](int64_t sample) {
        const float* __restrict from = x + sample * count;
        float* __restrict to = y + sample * count;
        for (int64_t i = begin; i < end; ++i) to[i] = from[i] + table[i];
      });
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    if (arguments.input_gradients[0].data == nullptr) return;
    stream.launch([dy = arguments.output_gradients[0].data, dx = arguments.input_gradients[0].data,
                   size = static_cast<size_t>(arguments.output_gradients[0].size_bytes())] {
      std::memcpy(dx, dy, size);
    });
  }

  void backward_weight(const KernelArguments& arguments, device::Stream& stream) override {
    stream.launch([dy = arguments.output_gradients[0].as<const float>(),
                   table = arguments.parameter_gradients[0].as<float>(), accumulate = arguments.accumulate,
                   count = sample_count_, table_count = table_count_, options = options_] {
      constexpr int64_t kPiece = 1024;
      parallel_pieces(options.intra_op_threads, count, kPiece, [=](int64_t begin, int64_t end) {
        // Chains over the samples, which go on from micro-batch to micro-batch.
        if (!accumulate) std::fill(table + begin, table + end, 0.0f);
        for (int64_t sample = 0; sample < options.batch; ++sample) {
          const float* __restrict gradient = dy + sample * count;
          float* __restrict sums = table;
          for (int64_t i = begin; i < end; ++i) sums[i] += gradient[i];
        }
      });
      if (!accumulate) std::fill(table + count, table + table_count, 0.0f);
    });
  }

 private:
  int64_t sample_count_, table_count_, width_;
  KernelOptions options_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const Embedding& op, Inputs inputs, const KernelOptions&) {
  return std::make_unique<EmbeddingKernel>(op, inputs[0]);
}
template <>
std::unique_ptr<Kernel> make_cpu_kernel(const PositionEmbedding& op, Inputs inputs,
                                        const KernelOptions& options) {
  return std::make_unique<PositionEmbeddingKernel>(op, inputs[0], options);
}

}  // namespace lockstep::ops
