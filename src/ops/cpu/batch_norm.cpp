#include "ops/batch_norm.h"

#include <cmath>

#include "ops/cpu/columns.h"
#include "ops/cpu/loops/loops.h"
#include "ops/cpu/parallel.h"
#include "ops/parts.h"

namespace lockstep::ops {
namespace {

void add_or_set(float& to, double value, bool accumulate) {
  const auto rounded = static_cast<float>(value);
  to = accumulate ? to + rounded : rounded;
}

/// Mean and summed squared deviations of the blocks' rows, [blocks, 2, columns]. Each block is read twice
/// while it lies in a cache: no cancellation, and one pass through memory.
void block_moments(const ColumnBlocks& blocks, const float* x, float* moments, int threads) {
  const ColumnLanes lanes(blocks.columns);
  parallel_for(threads, blocks.count(), [=, &blocks](int64_t block) {
    const float* rows = x + blocks.first_row(block) * blocks.columns;
    float* mean = moments + 2 * block * blocks.columns;
    const int64_t count = blocks.rows_of(block);
    loops().columns.sum(count, lanes, mean, rows);
    for (int64_t c = 0; c < blocks.columns; ++c) mean[c] /= static_cast<float>(count);
    const LaneValues means(mean, lanes);
    loops().columns.squared_deviations(count, lanes, mean + blocks.columns, rows, means.data());
  });
}

/// Joins the blocks' moments in their order (Chan, Golub and LeVeque, "Updating formulae and a pairwise
/// algorithm for computing sample variances", 1979) into mean and biased variance.
void join_moments(const ColumnBlocks& blocks, const float* moments, float* means, float* variances) {
  for (int64_t c = 0; c < blocks.columns; ++c) {
    double count = 0, mean = 0, squares = 0;
    for (int64_t block = 0; block < blocks.count(); ++block) {
      const float* of_block = moments + 2 * block * blocks.columns;
      const auto rows = static_cast<double>(blocks.rows_of(block));
      const double difference = static_cast<double>(of_block[c]) - mean, joined = count + rows;
      mean += difference * rows / joined;
      squares +=
          static_cast<double>(of_block[blocks.columns + c]) + difference * difference * count * rows / joined;
      count = joined;
    }
    means[c] = static_cast<float>(mean);
    variances[c] = static_cast<float>(squares / count);
  }
}

/// Of all rows. Of the channels' numbers there is one each.
void normalize(const ColumnBlocks& blocks, const Normalization& whole, int threads) {
  const ColumnLanes lanes(blocks.columns);
  const LaneValues means(whole.mean, lanes), scales(whole.scale, lanes), biases(whole.bias, lanes);
  Normalization repeated = whole;
  repeated.mean = means.data(), repeated.scale = scales.data(), repeated.bias = biases.data();
  parallel_for(threads, blocks.count(), [&](int64_t block) {
    const int64_t begin = blocks.first_row(block) * blocks.columns;
    Normalization own = repeated;
    own.x += begin, own.y += begin;
    if (own.other != nullptr) own.other += begin;
    loops().columns.normalize(blocks.rows_of(block), lanes, own);
  });
}

/// What the gradients are made of, with a number for each lane.
class BlockGradients {
 public:
  /// Of the channels' numbers there is one each.
  BlockGradients(const ColumnBlocks& blocks, const NormalizedGradient& whole)
      : blocks_(blocks),
        lanes_(blocks.columns),
        has_relu_(whole.scale != nullptr),
        whole_(whole),
        means_(whole.mean, lanes_),
        scales_(has_relu_ ? whole.scale : whole.mean, lanes_),
        biases_(has_relu_ ? whole.bias : whole.mean, lanes_) {}

  NormalizedGradient of(int64_t block) const {
    const int64_t begin = blocks_.first_row(block) * blocks_.columns;
    return {.dy = whole_.dy + begin,
            .x = whole_.x + begin,
            .mean = means_.data(),
            .scale = has_relu_ ? scales_.data() : nullptr,
            .bias = has_relu_ ? biases_.data() : nullptr};
  }

 private:
  const ColumnBlocks& blocks_;
  ColumnLanes lanes_;
  bool has_relu_;
  NormalizedGradient whole_;
  LaneValues means_, scales_, biases_;
};

class BatchNormKernel : public Kernel {
 public:
  BatchNormKernel(const BatchNorm& op, const Shape& input, const KernelOptions& options)
      : epsilon_(op.epsilon),
        training_(options.training),
        adds_(options.fused.add_behind),
        has_relu_(options.fused.relu_behind),
        threads_(options.intra_op_threads),
        blocks_(input.count() / input[-1] * options.batch, input[-1]) {}

  int64_t workspace_bytes(KernelPhase phase) const override {
    const int64_t of_blocks = 2 * blocks_.count() * blocks_.columns;
    switch (phase) {
      case KernelPhase::forward:
        return bytes(blocks_.columns + (training_ ? of_blocks : 0));
      case KernelPhase::backward_input:
        return bytes(4 * blocks_.columns + of_blocks);
      case KernelPhase::backward_weight:
        break;
    }
    return 0;
  }

  void forward(const KernelArguments& arguments, device::Stream& stream) override {
    const float* running[] = {arguments.parameters[2].as<const float>(),
                              arguments.parameters[3].as<const float>()};
    stream.launch([this, x = arguments.inputs[0].as<const float>(), y = arguments.outputs[0].as<float>(),
                   other = adds_ ? arguments.inputs[1].as<const float>() : nullptr,
                   weight = arguments.parameters[0].as<const float>(),
                   bias = arguments.parameters[1].as<const float>(), running_mean = running[0],
                   running_var = running[1], saved = Saved(arguments, training_),
                   scale = static_cast<float*>(arguments.workspace)] {
      const int64_t channels = blocks_.columns;
      if (training_) {
        float* moments = scale + channels;
        block_moments(blocks_, x, moments, threads_);
        join_moments(blocks_, moments, saved.mean, saved.variance);
      }
      const float* variance = training_ ? saved.variance : running_var;
      for (int64_t c = 0; c < channels; ++c) {
        const float inverse = 1.0f / std::sqrt(variance[c] + epsilon_);
        if (training_) saved.inverse_deviation[c] = inverse;
        scale[c] = weight[c] * inverse;
      }
      normalize(blocks_,
                {.x = x,
                 .mean = training_ ? saved.mean : running_mean,
                 .scale = scale,
                 .bias = bias,
                 .other = other,
                 .has_relu = has_relu_,
                 .y = y},
                threads_);
    });
  }

  void backward_input(const KernelArguments& arguments, device::Stream& stream) override {
    const Gradients gradients{arguments.parameter_gradients[0].as<float>(),
                              arguments.parameter_gradients[1].as<float>(),
                              arguments.parameter_gradients[2].as<float>(),
                              arguments.parameter_gradients[3].as<float>(), arguments.accumulate};
    stream.launch([this, x = arguments.inputs[0].as<const float>(),
                   dy = arguments.output_gradients[0].as<const float>(),
                   weight = arguments.parameters[0].as<const float>(),
                   bias = arguments.parameters[1].as<const float>(), saved = Saved(arguments, true),
                   gradients, dx = arguments.input_gradients[0].as<float>(),
                   factors = static_cast<float*>(arguments.workspace)] {
      float *scale = factors + 3 * blocks_.columns, *sums = scale + blocks_.columns;
      NormalizedGradient gradient{.dy = dy, .x = x, .mean = saved.mean, .scale = nullptr, .bias = nullptr};
      // Behind a sum the ReLU's backward is its own, since the sum's other term has the same gradient.
      if (has_relu_ && !adds_) {
        for (int64_t c = 0; c < blocks_.columns; ++c) scale[c] = weight[c] * saved.inverse_deviation[c];
        gradient.scale = scale, gradient.bias = bias;
      }
      const BlockGradients of_blocks(blocks_, gradient);
      block_sums(of_blocks, saved, sums);
      fold(weight, saved, sums, gradients, factors);
      if (dx != nullptr) input_gradient(of_blocks, factors, dx);
    });
  }

 private:
  /// What forward leaves for backward.
  struct Saved {
    float *mean = nullptr, *inverse_deviation = nullptr, *variance = nullptr;
    Saved(const KernelArguments& arguments, bool training) {
      if (!training) return;
      mean = arguments.auxiliary[0].as<float>();
      inverse_deviation = arguments.auxiliary[1].as<float>();
      variance = arguments.auxiliary[2].as<float>();
    }
  };
  struct Gradients {
    float *weight, *bias, *running_mean, *running_var;
    bool accumulate;
  };

  static int64_t bytes(int64_t floats) { return floats * static_cast<int64_t>(sizeof(float)); }

  /// sums [blocks, 2, channels]: of dy normalized(x), then of dy.
  void block_sums(const BlockGradients& gradients, const Saved& saved, float* sums) const {
    const ColumnLanes lanes(blocks_.columns);
    parallel_for(threads_, blocks_.count(), [&](int64_t block) {
      float* weight_sums = sums + 2 * block * blocks_.columns;
      loops().columns.gradient_sums(blocks_.rows_of(block), lanes, weight_sums, weight_sums + blocks_.columns,
                                    gradients.of(block));
      for (int64_t c = 0; c < blocks_.columns; ++c) weight_sums[c] *= saved.inverse_deviation[c];
    });
  }

  /// Gradients of the parameters, the statistics, and the factors [3, channels] of input_gradient.
  void fold(const float* weight, const Saved& saved, const float* sums, const Gradients& gradients,
            float* factors) const {
    const int64_t channels = blocks_.columns;
    const auto rows = static_cast<double>(blocks_.rows);
    fold_blocks(blocks_, sums, 2 * channels, [&](int64_t c, double sum) {
      const double scale = static_cast<double>(weight[c]) * static_cast<double>(saved.inverse_deviation[c]);
      add_or_set(gradients.weight[c], sum, gradients.accumulate);
      factors[c] = static_cast<float>(scale);
      factors[channels + c] =
          static_cast<float>(-scale * static_cast<double>(saved.inverse_deviation[c]) * sum / rows);
    });
    fold_blocks(blocks_, sums + channels, 2 * channels, [&](int64_t c, double sum) {
      const double scale = static_cast<double>(weight[c]) * static_cast<double>(saved.inverse_deviation[c]);
      add_or_set(gradients.bias[c], sum, gradients.accumulate);
      factors[2 * channels + c] = static_cast<float>(-scale * sum / rows);
    });
    for (int64_t c = 0; c < channels; ++c) {
      add_or_set(gradients.running_mean[c], static_cast<double>(saved.mean[c]), gradients.accumulate);
      add_or_set(gradients.running_var[c], static_cast<double>(saved.variance[c]) * rows / (rows - 1),
                 gradients.accumulate);
    }
  }

  /// With n = (x - mean) inverse: dx = weight inverse (dy - mean(dy) - n mean(dy n)), as three factors per
  /// channel.
  void input_gradient(const BlockGradients& gradients, const float* factors, float* dx) const {
    const ColumnLanes lanes(blocks_.columns);
    const LaneValues of_dy(factors, lanes), of_x(factors + blocks_.columns, lanes),
        constant(factors + 2 * blocks_.columns, lanes);
    parallel_for(threads_, blocks_.count(), [&](int64_t block) {
      loops().columns.input_gradient(blocks_.rows_of(block), lanes,
                                     dx + blocks_.first_row(block) * blocks_.columns, gradients.of(block),
                                     of_dy.data(), of_x.data(), constant.data());
    });
  }

  float epsilon_;
  bool training_;
  bool adds_, has_relu_;  ///< behind the norm (FusedNeighbors)
  int threads_;
  ColumnBlocks blocks_;
};

}  // namespace

template <>
std::unique_ptr<Kernel> make_cpu_kernel(const BatchNorm& op, Inputs inputs, const KernelOptions& options) {
  expect_variance(op, inputs[0].shape, options);
  return std::make_unique<BatchNormKernel>(op, inputs[0].shape, options);
}

}  // namespace lockstep::ops
